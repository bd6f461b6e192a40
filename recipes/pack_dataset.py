"""Pack documents from files into a dataset that trainers read, and say what became of every token.

    python recipes/pack_dataset.py corpus.jsonl packed --budget 4096 --tokenizer tokenizer.json --eos "</s>"
    python recipes/pack_dataset.py tokens.parquet packed --budget 8192 --overlong split

In: JSON lines, Parquet, Arrow, text, or a saved dataset; with a column of texts, or with ``input_ids`` (and masks,
labels and other per-token columns, which travel in step). Out: a folder for ``datasets.load_from_disk``, with the plan
and the ledger beside the data. Training needs no more than this:

    packed = datasets.load_from_disk("packed")
    loader = DataLoader(packed.with_format("numpy"), batch_size=1, shuffle=True, collate_fn=PackingCollator())
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import datasets

from packdata.planning import Plan
from packdata.sources import Documents, ledger_of, pack_dataset
from packdata.sources.files import marker_id, read_documents
from packdata.sources.topics import topic_texts


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", nargs="?", help="a file, a folder of files, or a saved dataset")
    parser.add_argument("output", nargs="?", help="the folder to write")
    parser.add_argument("--budget", type=int, default=2048, help="most tokens in a pack")
    parser.add_argument("--tokenizer", help="'bytes', a tokenizer.json, or a folder for AutoTokenizer")
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--bos", help="token, or its id, to begin each document with")
    parser.add_argument("--eos", help="token, or its id, to end each document with")
    parser.add_argument("--strategy", choices=["best_fit", "sequential", "concat"], default="best_fit")
    parser.add_argument("--overlong", choices=["error", "truncate", "truncate_left", "split", "drop"], default="error")
    parser.add_argument("--untargeted", choices=["keep", "drop", "error"], default="keep")
    parser.add_argument("--max-documents", type=int, help="most documents in a pack")
    parser.add_argument("--seed", type=int, help="shuffle the packs")
    parser.add_argument("--drop-columns", nargs="*", default=[], help="columns to leave behind")
    parser.add_argument("--smoke", action="store_true", help="pack Python's help topics, and check the result")
    options = parser.parse_args(arguments)
    if not options.smoke and (options.input is None or options.output is None):
        parser.error("give INPUT and OUTPUT, or --smoke")
    return options


def pack(options: argparse.Namespace) -> datasets.Dataset:
    """Read, tokenise, pack, write."""
    documents = read_documents(options.input, tokenizer=options.tokenizer, text_column=options.text_column)
    return pack_dataset(
        documents,
        options.budget,
        strategy=options.strategy,
        overlong=options.overlong,
        untargeted=options.untargeted,
        max_documents=options.max_documents,
        seed=options.seed,
        drop_columns=options.drop_columns,
        bos_token_id=marker_id(options.bos, options.tokenizer),
        eos_token_id=marker_id(options.eos, options.tokenizer),
        output_dir=options.output,
    )


def smoke(options: argparse.Namespace, folder: Path) -> datasets.Dataset:
    """Pack a small corpus by bytes, and prove with the saved plan that each token is in its place."""
    options.input, options.output = str(folder / "topics.jsonl"), str(folder / "packed")
    options.tokenizer, options.eos, options.overlong = "bytes", "256", "split"
    texts = topic_texts().values()
    Path(options.input).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    packed = pack(options)
    documents = Documents(read_documents(options.input, tokenizer="bytes"), eos_token_id=256)
    plan = Plan.load(folder / "packed" / "plan")
    plan.check(documents.lengths)
    for pack_number, spans in enumerate(plan):
        if packed[pack_number]["input_ids"] != documents[spans]["input_ids"].tolist():
            raise SystemExit(f"pack {pack_number} does not hold the tokens that the plan says")
    return packed


def main(arguments: Sequence[str] | None = None) -> None:
    """Pack, and print the ledger."""
    options = parse(arguments)
    try:
        if options.smoke:
            with tempfile.TemporaryDirectory() as folder:
                packed = smoke(options, Path(folder))
        else:
            packed = pack(options)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{len(packed):,} packs of up to {options.budget:,} tokens in {options.output}")
    print(ledger_of(packed))


if __name__ == "__main__":
    main()
