"""Acceptance length is what speculative decoding, done block by block, would come to."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packdata.batches import PackingCollator
from packdata.drafting import acceptance_length

VOCABULARY = 3


class ScriptedDrafter:
    """Drafts what a table says for each position; every state is the one-hot of a token."""

    def __init__(self, table):
        self.table = table

    def __call__(self, hidden_states, position_ids, anchor_embeddings, slot_positions, mask):
        return torch.eye(VOCABULARY)[self.table[slot_positions]][None]


def decode(text, prompt_length, block_size, table):
    """Decode one document with drafts; returns tokens and passes."""
    newest, tokens, passes = prompt_length, 0, 0
    while newest + block_size <= len(text):
        accepted = 0
        while accepted < block_size - 1 and table[newest + accepted + 1] == text[newest + accepted + 1]:
            accepted += 1
        newest, tokens, passes = newest + accepted + 1, tokens + accepted + 1, passes + 1
    return tokens, passes


@settings(max_examples=50)
@given(st.data(), st.integers(0, 4), st.integers(1, 5))
def test_it_is_what_decoding_comes_to(data, prompt_length, block_size):
    token = st.integers(0, VOCABULARY - 1)
    text = st.lists(token, min_size=max(prompt_length + block_size, 1), max_size=25)
    documents = data.draw(st.lists(text, min_size=1, max_size=3))
    table = torch.tensor(data.draw(st.lists(token, min_size=25, max_size=25)))
    counts = [decode(document, prompt_length, block_size, table.tolist()) for document in documents]
    stream = PackingCollator()(documents)
    stream["hidden_states"] = torch.zeros(*stream.input_ids.shape, 2)
    found = acceptance_length(
        ScriptedDrafter(table), torch.eye(VOCABULARY), stream, prompt_length=prompt_length, block_size=block_size
    )
    assert found == pytest.approx(sum(tokens for tokens, _ in counts) / sum(passes for _, passes in counts))
    assert 1 <= found <= block_size


def test_a_document_without_room_for_a_block_is_refused():
    stream = PackingCollator()([[1, 2, 1, 2], [1, 2, 1]])
    stream["hidden_states"] = torch.zeros(1, 7, 2)
    with pytest.raises(ValueError, match=r"document 1 must have a prompt of 2 tokens and a block of 2, got 3 tokens"):
        acceptance_length(
            ScriptedDrafter(torch.zeros(9, dtype=torch.int64)), torch.eye(3), stream, prompt_length=2, block_size=2
        )


def test_a_stream_without_documents_is_refused():
    with pytest.raises(ValueError, match=r"at least one document to replay, got none"):
        acceptance_length(
            ScriptedDrafter(torch.zeros(9, dtype=torch.int64)),
            torch.eye(3),
            PackingCollator()([]),
            prompt_length=2,
            block_size=2,
        )
