"""The three divisors, and the way from slots to targets."""

import copy

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packdata.batches import PackedBatch, PackingCollator
from packdata.planning import plan_packs
from packdata.report import show, to_html
from packdata.report.denominators import count_slots, denominators


def worked_example() -> PackedBatch:
    """Two and five targets in a row of eight slots: nine tokens, of which the last one only is predicted."""
    batch = PackingCollator()([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6, 7, 8, 9]}])
    cut = {key: batch[key][:, :8] for key in ("input_ids", "targets", "position_ids", "document_ids")}
    return PackedBatch(batch | cut | {"cu_seqlens": torch.tensor([0, 3, 8]), "lengths": (3, 5)})


def test_the_worked_example_shows_all_three_numbers_by_name():
    text = show(worked_example(), losses=[1.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "9 / 7 targets: token mean, the loss 1.285714" in lines
    assert "3 / 2 sequences: mean of the documents' means, another aggregation 1.500000" in lines
    assert "9 / 8 slots: slot mean, WRONG, as it counts slots that predict nothing 1.125000" in lines


def test_the_three_numbers_stand_in_the_page(tmp_path):
    page = to_html(worked_example(), tmp_path / "page.html", losses=[1.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0]).read_text()
    for number in ("1.285714", "1.500000", "1.125000"):
        assert number in page


@given(
    masks=st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=5),
    losses=st.lists(st.floats(0, 9), min_size=30, max_size=30),
    layout=st.sampled_from(["stream", "rows"]),
    align=st.sampled_from([1, 2]),
    across=st.booleans(),
)
def test_counts_and_means_equal_the_oracle(masks, losses, layout, align, across):
    features = [{"input_ids": [7] * len(mask), "completion_mask": mask} for mask in masks]
    batch = PackingCollator(pad_to=30, layout=layout, align=align, cross_document_targets=across)(features)
    losses = torch.tensor(losses, dtype=torch.float64).expand_as(batch["targets"])
    counts, means, expected = count_slots(batch), denominators(batch, losses), oracles.denominators(batch, losses)
    assert counts.slots - counts.padding - counts.first_tokens - counts.masked == counts.targets == batch.num_targets
    assert counts.documents_without_targets == counts.documents - expected["sequences"]
    assert counts.first_tokens <= counts.documents
    assert min(counts.padding, counts.masked) >= 0
    for name in ("token_mean", "sequence_mean", "slot_mean"):
        assert getattr(means, name) == pytest.approx(expected[name])


def test_one_loss_per_target_is_the_same_as_losses_by_slot():
    batch = PackingCollator(pad_to=8)([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}])
    losses = torch.arange(8.0).reshape(1, 8)
    assert denominators(batch, losses) == denominators(batch, losses[batch.loss_mask])


def test_a_batch_without_targets_divides_by_nothing():
    means = denominators(PackingCollator()([]), [])
    assert (means.token_mean, means.sequence_mean, means.slot_mean) == (0, 0, 0)


def test_losses_of_another_shape_are_refused():
    batch = PackingCollator(pad_to=8)([{"input_ids": [1, 2, 3]}])
    with pytest.raises(
        ValueError, match=r"shape \(1, 8\) or be one number for each of the 2 targets, got shape \(3,\)"
    ):
        show(batch, losses=[1.0, 2.0, 3.0])


def test_losses_without_a_batch_are_refused():
    with pytest.raises(TypeError, match="losses belong to a PackedBatch, not to a Plan"):
        show(plan_packs([3], budget=4), losses=[1.0])


def test_a_batch_is_read_only():
    batch = PackingCollator(pad_to=8)([{"input_ids": [1, 2, 3]}])
    before = copy.deepcopy(batch)
    show(batch, losses=[1.0, 2.0])
    assert all(torch.equal(batch[key], before[key]) for key in ("input_ids", "targets", "document_ids"))
