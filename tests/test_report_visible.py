"""No character of a document acts on a terminal or a page."""

import unicodedata

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from packdata.report.visible import cell, clip, columns, decoder, pad, visible

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates and controls included


@given(ANY_TEXT)
def test_visible_text_has_nothing_that_acts(text):
    shown = visible(text)
    shown.encode("utf-8")
    assert not [character for character in shown if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")]
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\ufeff")


@given(ANY_TEXT)
def test_text_without_acting_characters_is_left_alone(text):
    assert visible(visible(text)) == visible(text)


@pytest.mark.parametrize("text", ["plain", "naïve", "שלום", "日本", "👩‍👩‍👧", "a<script>alert(1)</script>"])
def test_letters_and_emoji_stay(text):
    assert visible(text) == text


@given(ANY_TEXT, st.integers(2, 12))
def test_clipped_text_fits(text, width):
    assert columns(clip(visible(text), width)) <= width


@given(ANY_TEXT)
def test_padded_text_has_its_width(text):
    shown = clip(visible(text), 10)
    assert columns(pad(shown, 12).translate({0x2068: None, 0x2069: None})) == 12


@given(st.lists(st.integers(0, 300)))
def test_bytes_of_any_kind_decode(ids):
    visible(decoder("bytes")(ids)).encode("utf-8")


def test_a_token_that_decodes_to_nothing_shows_its_number():
    assert cell(7, lambda ids: "", width=6) == "⟨7⟩"


def special_tokens():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "a": 1}))
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


def test_decoders():
    class Words:
        def decode(self, ids):
            return " ".join("abc"[i] for i in ids)

    assert decoder()([1, 2]) == "1 2"
    assert decoder("bytes")(list("é\n".encode())) == "é\n"
    assert decoder("bytes")([0xFF, 256]) == "\\xff⟨256⟩"
    assert decoder(Words())([0, 2]) == "a c"
    assert decoder(special_tokens())([0, 1]) == "<s> a"
    assert decoder(lambda ids: "x" * len(ids))([0, 2]) == "xx"


@pytest.mark.parametrize("tokenizer", ["gpt2", 5, b"bytes"])
def test_what_is_no_tokenizer_is_refused(tokenizer):
    with pytest.raises(ValueError, match="tokenizer must be None, 'bytes', an object with decode"):
        decoder(tokenizer)
