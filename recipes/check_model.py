"""Which ways of calling a model keep packed documents apart?

    python recipes/check_model.py Qwen3Config          # a config class of transformers, made tiny
    python recipes/check_model.py path/to/model        # or a saved model

One document is changed; if any logit of another document changes, however little, that way leaks.
"""

import argparse
import sys
import textwrap

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


def show(rows: list[CheckedWay]) -> None:
    """Print a line for each way, and below the table each cause once."""
    print(f"{'attention':18}{'called with':50}{'verdict':10}{'leak':>10}{'vs alone':>10}  why")
    causes: dict[str, int] = {}
    for row in rows:
        report = row.report
        why = report.cause or report.message
        note = "" if why is None else f"[{causes.setdefault(why, len(causes) + 1)}]"
        leak = max((leak.difference for leak in report.leaks), default=None)
        numbers = "".join(
            f"{'' if value is None else format(value, '.1e'):>10}" for value in (leak, report.alone_difference)
        )
        print(f"{row.implementation:18}{row.way:50}{report.verdict:10}{numbers}  {note}")
    for why, number in causes.items():
        print(textwrap.fill(f"[{number}] {why.strip().splitlines()[0]}", 120, subsequent_indent="    "))


def main() -> int:
    """Check the model; in the short form, fail unless the known verdicts come out."""
    arguments = parse_arguments()
    transformers.logging.set_verbosity_error()
    rows = check_ways(
        model_maker(arguments.model, dtype=getattr(torch, arguments.dtype)), implementations=arguments.attention
    )
    show(rows)
    if arguments.smoke:
        unsafe = {(row.implementation, row.way) for row in rows if not row.report}
        ones = "to_transformers(batch), attention_mask of ones"
        expected = {(kind, way) for kind in ("eager", "sdpa") for way in ("position_ids", ones)}
        return int(unsafe != expected | {("eager", "to_transformers(batch), 4-D bool mask")})
    return 0


if __name__ == "__main__":
    sys.exit(main())
