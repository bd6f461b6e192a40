"""Which ways of calling a model keep packed documents apart?

    python recipes/check_model.py Qwen3Config          # a config class of transformers, made tiny
    python recipes/check_model.py path/to/model        # or a saved model

One document is changed; if any logit of another document changes, however little, that way leaks.
"""

import argparse
import sys
import textwrap
from collections.abc import Iterable

import torch
import transformers

from packdata.checks import CheckedWay, check_ways, model_maker


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="LlamaConfig", help="config class or local folder")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--attention", nargs="+", default=None, help="attention implementations to check")
    parser.add_argument("--smoke", action="store_true", help="check a Llama with eager attention and SDPA, and quit")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.model, arguments.attention = "LlamaConfig", ["eager", "sdpa"]
    if arguments.attention is None:
        arguments.attention = ["eager", "sdpa", "flex_attention"]
        arguments.attention += ["flash_attention_2"] if torch.cuda.is_available() else []
    return arguments


def show(rows: Iterable[CheckedWay]) -> list[CheckedWay]:
    """Print a line for each way as it comes, and below the table each cause once."""
    print(f"{'attention':18}{'called with':50}{'verdict':10}{'leak':>10}{'vs alone':>10}  why")
    causes: dict[str, int] = {}
    shown = []
    for row in rows:
        why = row.report.cause or row.report.message
        note = "" if why is None else f"[{causes.setdefault(why, len(causes) + 1)}]"
        leak = max((leak.difference for leak in row.report.leaks), default=None)
        numbers = ["" if value is None else f"{value:.1e}" for value in (leak, row.report.alone_difference)]
        line = f"{row.implementation:18}{row.way:50}{row.report.verdict:10}{numbers[0]:>10}{numbers[1]:>10}  {note}"
        print(line.rstrip(), flush=True)
        shown.append(row)
    for why, number in causes.items():
        print(textwrap.fill(f"[{number}] {why.strip().splitlines()[0]}", 120, subsequent_indent="    "))
    return shown


def main() -> int:
    """Check the model; in the short form, fail unless the known verdicts come out."""
    arguments = parse_arguments()
    transformers.logging.set_verbosity_error()
    make = model_maker(arguments.model, dtype=getattr(torch, arguments.dtype))
    rows = show(check_ways(make, implementations=arguments.attention))
    if not arguments.smoke:
        return 0
    ones = "to_transformers(batch), attention_mask of ones"
    expected = {(kind, way) for kind in ("eager", "sdpa") for way in ("position_ids", ones)}
    expected.add(("eager", "to_transformers(batch), 4-D bool mask"))
    return int({(row.implementation, row.way) for row in rows if not row.report} != expected)


if __name__ == "__main__":
    sys.exit(main())
