"""``packdata demo``: the quickstart's data, packed and reported."""

from typing import Annotated

import typer

from .options import Html, Json, say, tell_of, terminal_width


def demo(
    budget: Annotated[int, typer.Option(help="The most tokens in a pack.")] = 2048,
    html: Html = None,
    json: Json = False,
) -> None:
    """Pack Python's own help topics, paragraph by paragraph, and show what a model would be trained on.

    For instance:

    - packdata demo
    - packdata demo --budget 512 --html demo.html
    """
    from packdata.planning import plan_packs
    from packdata.report import show, to_html
    from packdata.report.facts import numbers_of
    from packdata.sources import Documents, PackedDataset
    from packdata.sources.topics import topic_paragraphs

    features = []
    for name, text in topic_paragraphs():
        prompt, answer = f"{name}: ".encode(), text.encode()
        mask = [0] * len(prompt) + [1] * len(answer)
        features.append({"input_ids": list(prompt + answer), "completion_mask": mask})
    documents = Documents(features)
    packed = PackedDataset(documents, plan_packs(documents.lengths, budget, overlong="split"))
    if html is not None:
        to_html(packed, html, tokenizer="bytes")
        tell_of(html)
    say(lambda: show(packed, "bytes", width=terminal_width()), lambda: numbers_of(packed, "bytes"), as_json=json)
