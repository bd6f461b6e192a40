"""The page: every number is the object's own, every word is escaped, nothing is fetched."""

import re
import shutil
import subprocess
import time
from html.parser import HTMLParser

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packdata.batches import PackingCollator
from packdata.planning import plan_packs
from packdata.report import to_html
from packdata.sources.topics import topic_texts

VOID = {"meta", "link"}


class Page(HTMLParser):
    """What a page holds: named numbers, tags, attributes, text outside of styles; unclosed tags are an error."""

    def __init__(self, text: str):
        super().__init__()
        self.numbers, self.tags, self.addresses, self.words, self.open, self.bars = {}, set(), [], [], [], {}
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs.items() if name in ("src", "href", "action", "data")]
        assert not [name for name in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table" and "data-key" in attrs:
            self.bars[attrs["data-key"]] = {}
        if tag == "data" and "data-key" in attrs:
            self.numbers[attrs["data-key"]] = float(attrs["value"])
        elif tag == "data":
            self.bars[list(self.bars)[-1]][self.words[-1]] = int(attrs["value"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


def read(obj, folder, **options):
    text = to_html(obj, folder / "page.html", **options).read_text(encoding="utf-8")
    return Page(text), text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@given(
    lengths=st.lists(st.integers(0, 40), max_size=30),
    overlong=st.sampled_from(["truncate", "split", "drop"]),
    align=st.sampled_from([1, 2]),
    packs_multiple_of=st.sampled_from([1, 3]),
)
@settings(max_examples=40)
def test_every_number_of_a_plan_equals_the_plan(folder, lengths, overlong, align, packs_multiple_of):
    plan = plan_packs(lengths, 16, overlong=overlong, align=align, packs_multiple_of=packs_multiple_of)
    page, _ = read(plan, folder)
    expected = oracles.report_numbers([plan[i].lengths.tolist() for i in range(len(plan))], budget=16)
    assert {key: page.numbers[key] for key in expected} == pytest.approx(expected)
    ledger = {key: value for key, value in plan.ledger.to_dict().items() if value is not None}
    assert {key: page.numbers[f"ledger.{key}"] for key in ledger} == ledger
    assert_bars_are_right(page, plan)
    assert_packs_are_right(page, plan)


def assert_bars_are_right(page, plan):
    assert sum(page.bars["lengths"].values()) == len(plan.lengths)
    assert sum(page.bars["fills"].values()) == len(plan)
    for label, count in page.bars["lengths"].items():
        ends = [int(number) for number in re.findall(r"\d+", label)]
        assert count == sum(ends[0] <= length <= ends[-1] for length in plan.lengths.tolist())


def assert_packs_are_right(page, plan):
    labels = re.findall(r"pack (\d+): (\d+) tokens? of (\d+) documents?, ([\d.]+)% full", "\n".join(page.words))
    assert len(labels) == min(len(plan), 12)
    for index, tokens, documents, fill in labels:
        lengths = plan[int(index)].lengths
        assert (int(tokens), int(documents)) == (lengths.sum(), len(lengths))
        assert float(fill) == pytest.approx(100 * lengths.sum() / plan.budget, abs=0.051)


def test_every_number_of_a_batch_equals_the_batch(folder):
    batch = PackingCollator(pad_to=24, layout="rows")([{"input_ids": range(9)}, {"input_ids": range(20)}])
    page, _ = read(batch, folder)
    expected = oracles.report_numbers([[9], [20]], budget=24)
    assert {key: page.numbers[key] for key in expected} == pytest.approx(expected)
    assert page.numbers["counts.targets"] == batch.num_targets == 27


HOSTILE = [
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }} {% raw %} &lt; \" ' `",
    "\x00\x07\x1b[31m\x9b\r\n\t",
    "\u202eright to left\u2066 שלום العربية",
    "👩‍👩‍👧 🏴󠁧󠁢󠁳󠁣󠁴󠁿 \ufeff\u200b",
    "\ud800 lone \udfff",
]


def pages_of(text, folder):
    batch = PackingCollator()([{"input_ids": [1, 2, 3]}, {"input_ids": [4] * 50}])
    return read(batch, folder, tokenizer=lambda ids: text * len(ids))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_escaped(folder, text):
    page, source = pages_of(text, folder)
    harmless, _ = pages_of("harmless", folder)
    assert page.tags == harmless.tags
    assert page.addresses == harmless.addresses == ["data:,"]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", source)


@given(st.text(st.characters(exclude_categories=()), max_size=20))
@settings(max_examples=30)
def test_any_text_is_escaped(folder, text):
    page, _ = pages_of(text, folder)
    assert "script" not in page.tags


@given(st.lists(st.integers(0, 255), min_size=1, max_size=60))
@settings(max_examples=30)
def test_invalid_utf8_is_shown(folder, ids):
    read(PackingCollator()([{"input_ids": ids}]), folder, tokenizer="bytes")


def test_nothing_is_fetched(folder):
    page, source = read(plan_packs([3, 5], budget=8), folder)
    assert page.addresses == ["data:,"]
    assert not re.search(r"https?:|//|@import|url\(|<script", source)
    assert "default-src 'none'" in source


def test_a_million_documents_in_seconds_and_kilobytes(folder):
    lengths = np.random.default_rng(0).lognormal(5, 1, 1_000_000).astype(np.int64).clip(1, 4096)
    plan = plan_packs(lengths, budget=8192)
    start = time.process_time()
    path = to_html(plan, folder / "million.html")
    assert time.process_time() - start < 10
    assert path.stat().st_size < 2_000_000


def test_packs_of_many_short_documents_stay_small(folder):
    plan = plan_packs(np.ones(200_000, np.int64), budget=16_384)
    assert to_html(plan, folder / "ones.html").stat().st_size < 2_000_000


def test_there_must_be_such_a_pack(folder):
    with pytest.raises(ValueError, match="pack must be from 0 to 1, got 2"):
        to_html(plan_packs([3, 5, 8], budget=8), folder / "page.html", pack=2)


def test_an_empty_plan_has_a_page(folder):
    page, _ = read(plan_packs([], budget=8), folder)
    assert page.numbers["packs"] == 0


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
@pytest.mark.parametrize("width", ["390", "1200"])
def test_a_browser_has_nothing_to_complain_of(folder, tmp_path, width):
    texts = list(topic_texts().values())[:20]
    batch = PackingCollator()([{"input_ids": list(text.encode())} for text in texts])
    path = to_html(batch, folder / "topics.html", tokenizer="bytes")
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={tmp_path}", f"--window-size={width},900", "--dump-dom", path.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in run.stderr
    assert "who attends to whom" in run.stdout
