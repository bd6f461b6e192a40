"""Sums, counts and weights on one process: every aggregation equals its formula computed by hand."""

import hypothesis.strategies as st
import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from torch.nn.functional import one_hot, pad

from packdata.batches import PackingCollator
from packdata.kernels import linear_cross_entropy
from packdata.losses import LossSum, global_count, loss_scale, masked_sum, scale_gradients, target_weights

MODES = ("token_mean", "sequence_mean", "sequence_sum", "constant", "group_mean")


def documents_with(losses):
    """One document per list: a first token (never a target), then one target per loss; NaN elsewhere."""
    return [{"input_ids": [1] * (len(document) + 1)} for document in losses]


def token_losses(batch, losses):
    """Losses on the batch's target slots, NaN on all others."""
    values = torch.full(batch.targets.shape, torch.nan, dtype=torch.float64)
    values[batch.loss_mask] = torch.tensor([loss for document in losses for loss in document], dtype=torch.float64)
    return values


def collate(losses, **options):
    batch = PackingCollator(**options)(documents_with(losses))
    return batch, token_losses(batch, losses)


def aggregate(batch, values, mode, **options):
    weights, count = target_weights(batch, mode, **options)
    return LossSum(masked_sum(values, batch.loss_mask, weights).total, count)


def value(loss):
    return float(loss.total) * float(loss_scale(loss.count, averaged_over=1))


# --- the mean of a step

# Losses of each micro-batch's documents; what the step's token mean is.
TOKEN_MEANS = [
    pytest.param([[[2.0, 2.0, 2.0]], [[4.0]]], 10 / 4, id="D1"),
    pytest.param([[[2.0, 2.0, 2.0], [4.0]]], 10 / 4, id="D1-in-one-batch"),
    pytest.param([[[1.0] * 5], [[3.0]]], 8 / 6, id="D2"),
    pytest.param([[[1.0, 3.0], [1.0] * 5]], 9 / 7, id="worked-example"),
    pytest.param([[[1.0, 3.0]], [], [[1.0] * 5]], 9 / 7, id="a-batch-without-targets"),
    pytest.param([[[]], [[], []]], 0.0, id="no-targets"),
]


@pytest.mark.parametrize(("micro_batches", "mean"), TOKEN_MEANS)
def test_sums_and_counts_add_up_to_the_token_mean(micro_batches, mean):
    sums = []
    for losses in micro_batches:
        batch, values = collate(losses)
        sums.append(masked_sum(values, batch.loss_mask))
    step = sum(sums)
    assert int(step.count) == global_count([int(loss.count) for loss in sums])
    assert value(step) == pytest.approx(mean, rel=1e-12)


def test_the_worked_example_of_three_denominators():
    batch, values = collate([[1.0, 3.0], [1.0] * 5], pad_to=9)
    assert value(aggregate(batch, values, "token_mean")) == pytest.approx(9 / 7)
    assert value(aggregate(batch, values, "sequence_mean")) == pytest.approx(1.5)
    assert batch.num_targets == 7


@pytest.mark.parametrize("layout", [{}, {"layout": "rows"}, {"pad_to": 12}], ids=str)
def test_targets_that_the_shift_removes_are_not_counted(layout):  # D3
    batch, values = collate([[1.0, 2.0], [3.0]], **layout)
    loss = masked_sum(values, batch.loss_mask)
    assert int(loss.count) == batch.num_targets == 3
    assert value(loss) == pytest.approx(2.0)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 6, 100])
@pytest.mark.parametrize(
    ("losses", "ignored", "mean"),
    [
        pytest.param([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0, 3.5, id="D8"),
        pytest.param([1.0, 2.0, 3.0, 4.0], 4, 2.5, id="D9"),
    ],
)
def test_chunks_do_not_change_the_mean(losses, ignored, mean, chunk):
    values = torch.tensor(losses + [torch.nan] * ignored)
    mask = torch.tensor([True] * len(losses) + [False] * ignored)
    parts = zip(values.split(chunk), mask.split(chunk), strict=True)
    assert value(sum(masked_sum(*part) for part in parts)) == pytest.approx(mean)
    # the same from hidden states: two tokens, the target's logit lower by x, so that the loss is log(1 + exp x)
    logits = torch.expm1(torch.tensor(losses + [1.0] * ignored)).log()
    hidden = torch.stack([logits, torch.zeros_like(logits)], 1)
    targets = torch.where(mask, 1, -100)
    loss = linear_cross_entropy(hidden, torch.eye(2), targets, max_logits_bytes=8 * chunk)
    assert value(loss) == pytest.approx(mean, rel=1e-6)


def test_shifted_targets_are_not_shifted_again():  # A3
    batch = PackingCollator()([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6]}])
    assert batch.targets.tolist() == [[2, 3, -100, 5, 6, -100]]
    following = pad(batch.input_ids, (0, 1))[:, 1:]
    hidden = 20.0 * one_hot(following, 8)
    loss = linear_cross_entropy(hidden, torch.eye(8), batch.targets)
    assert loss.count == 4
    assert value(loss) < 1e-6
    twice = pad(batch.targets, (0, 1), value=-100)[:, 1:]
    assert value(linear_cross_entropy(hidden, torch.eye(8), twice)) == pytest.approx(20, rel=1e-3)


# --- masked_sum and LossSum


def test_nan_outside_the_mask_leaks_neither_forward_nor_backward():
    losses = torch.tensor([1.0, torch.nan, torch.inf, 2.0], requires_grad=True)
    weights = torch.tensor([1.0, torch.nan, torch.nan, 3.0], requires_grad=True)
    loss = masked_sum(losses, torch.tensor([1, 0, 0, 2]), weights)
    assert loss.total == 7
    assert loss.count == 2
    loss.total.backward()
    assert losses.grad.tolist() == [1, 0, 0, 3]
    assert weights.grad.tolist() == [1, 0, 0, 2]


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (0,)], ids=str)
def test_no_targets_give_zero_with_a_zero_gradient(shape):
    losses = torch.full(shape, torch.nan, requires_grad=True)
    loss = masked_sum(losses, torch.zeros(shape))
    (loss.total * loss_scale(loss.count, averaged_over=4)).backward()
    assert loss.total == 0
    assert torch.equal(losses.grad, torch.zeros(shape))


def test_low_precision_losses_are_added_up_in_float32():
    losses = torch.full((4096,), 1.0, dtype=torch.bfloat16)
    loss = masked_sum(losses, torch.ones(4096))
    assert loss.total.dtype == torch.float32
    assert loss.total == 4096
    assert masked_sum(losses.double(), torch.ones(4096)).total.dtype == torch.float64


def test_loss_sums_add_up_with_sum_and_nothing_else():
    one = LossSum(torch.tensor(1.0), 2)
    assert sum([one, one, one]).count == 6
    with pytest.raises(TypeError, match="unsupported operand"):
        one + 1
    with pytest.raises(TypeError, match="unsupported operand"):
        1 + one


# --- every way to average

LOSSES = st.lists(st.lists(st.floats(-4, 4, width=32), max_size=5), min_size=1, max_size=6)
OPTIONS = [{}, {"pad_to": 40}, {"layout": "rows"}, {"align": 4}]


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=50)
@given(losses=LOSSES, options=st.sampled_from(OPTIONS), data=st.data())
def test_each_mode_equals_its_formula(mode, losses, options, data):
    groups = data.draw(st.lists(st.integers(-3, 3), min_size=len(losses), max_size=len(losses)))
    more = {"constant": {"max_length": 7}, "group_mean": {"groups": groups}}.get(mode, {})
    batch, values = collate(losses, **options)
    loss = aggregate(batch, values, mode, **more)
    assert value(loss) == pytest.approx(oracles.step_loss(losses, mode, **more), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=50)
@given(losses=LOSSES, cut=st.integers(0, 6))
def test_whole_documents_in_any_batches_give_the_same_loss(mode, losses, cut):
    groups = list(range(len(losses)))
    more = {"constant": {"max_length": 7}}.get(mode, {})
    parts = []
    for part in (slice(0, cut), slice(cut, None)):
        batch, values = collate(losses[part])
        own = {"groups": groups[part]} if mode == "group_mean" else {}
        parts.append(aggregate(batch, values, mode, **more, **own))
    step = oracles.step_loss(losses, mode, **more, groups=groups)
    assert value(sum(parts)) == pytest.approx(step, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=50)
@given(losses=LOSSES, data=st.data())
def test_documents_and_groups_that_span_batches(mode, losses, data):
    """Each document is cut in two pieces, which travel in two batches."""
    cuts = [data.draw(st.integers(0, len(document))) for document in losses]
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(losses), max_size=len(losses)))
    targets = [len(document) for document in losses]
    of_group = [sum(n for n, other in zip(targets, groups, strict=True) if other == group) for group in groups]
    groups_with_targets = {group for group, n in zip(groups, of_group, strict=True) if n}
    step = {
        "token_mean": {"step_count": sum(targets)},
        "sequence_mean": {"step_targets": targets, "step_count": sum(n > 0 for n in targets)},
        "sequence_sum": {"step_count": len(losses)},
        "constant": {"step_count": len(losses), "max_length": 7},
        "group_mean": {"step_targets": of_group, "step_count": len(groups_with_targets)},
    }[mode]
    total = 0.0
    for pieces in (
        [document[:cut] for document, cut in zip(losses, cuts, strict=True)],
        [document[cut:] for document, cut in zip(losses, cuts, strict=True)],
    ):
        loss = aggregate(*collate(pieces), mode, **step)
        total += value(loss)
    expected = oracles.step_loss(losses, mode, max_length=7, groups=groups)
    assert total == pytest.approx(expected, rel=1e-5, abs=1e-5)


PACKINGS = [
    pytest.param([[[1.0] * 6, [8.0]]], id="one-pack"),
    pytest.param([[[1.0] * 6], [[8.0]]], id="two-packs"),
    pytest.param([[[1.0] * 6], [[8.0]], []], id="two-packs-and-padding"),
]


@pytest.mark.parametrize("packs", PACKINGS)
@pytest.mark.parametrize(("mode", "mean"), [("token_mean", 2.0), ("sequence_mean", 4.5)])
def test_the_packing_does_not_change_the_weighting(packs, mode, mean):  # D11
    parts = [aggregate(*collate(losses, pad_to=16), mode) for losses in packs]
    assert value(sum(parts)) == pytest.approx(mean)


def test_a_document_without_targets_is_left_out_of_the_mean():  # O4
    batch, values = collate([[1.0, 3.0], []])
    assert batch.document_means(values).tolist() == [2.0, 0.0]
    assert value(aggregate(batch, values, "sequence_mean")) == 2.0
    assert value(aggregate(batch, values, "group_mean", groups=[0, 1])) == 2.0
    assert value(aggregate(batch, values, "sequence_sum")) == 2.0


@pytest.mark.parametrize("mode", MODES)
def test_weights_of_a_batch_without_documents(mode):
    batch = PackingCollator(pad_to=4)([])
    weights, count = target_weights(batch, mode, max_length=3, groups=[])
    assert weights.tolist() == [[0.0] * 4]
    assert weights.dtype == torch.float32
    assert int(count) == 0


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("mean", {}, "unknown mode 'mean': known are token_mean, sequence_mean"),
        ("constant", {}, "divides by max_length, which must be at least 1, got None"),
        ("constant", {"max_length": 0}, "must be at least 1, got 0"),
        ("group_mean", {}, "needs groups: the prompt group of each document"),
        ("group_mean", {"groups": [0]}, r"groups must hold one number per document, shape \(2,\), got \(1,\)"),
        ("group_mean", {"groups": torch.tensor([0.2, 0.7])}, "groups must be integers, got torch.float32"),
        ("sequence_mean", {"step_targets": [2, 1]}, "step_targets needs step_count"),
        (
            "sequence_mean",
            {"step_targets": [2], "step_count": 2},
            r"step_targets must hold .* shape \(2,\), got \(1,\)",
        ),
        ("sequence_mean", {"step_targets": [2, 0], "step_count": 2}, "document 1 has 1 in this batch alone, got 0"),
    ],
)
def test_weights_that_cannot_be_are_refused(mode, options, message):
    batch, _ = collate([[1.0, 2.0], [3.0]])
    with pytest.raises(ValueError, match=message):
        target_weights(batch, mode, **options)


# --- counts and scales


@pytest.mark.parametrize(
    ("counts", "total"), [(3, 3), ([3, 0, 4], 7), ((n for n in (1, 2)), 3), ([], 0), (torch.tensor([3, 4]), 7)]
)
def test_counts_add_up_without_a_process_group(counts, total):
    assert global_count(counts) == total


@pytest.mark.parametrize(
    "counts",
    [
        torch.tensor([200, 200], dtype=torch.uint8),
        [torch.tensor(200, dtype=torch.uint8)] * 2,
        np.array([200, 200], np.uint8),
        [np.int8(100), np.int8(100), 200.0],
    ],
    ids=str,
)
def test_counts_of_narrow_dtypes_do_not_wrap_around(counts):
    assert global_count(counts) == 400


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([2.5, 1.0], "counts must be whole numbers of targets, got 2.5"),
        ([5, -3], "counts must be whole numbers of targets, got -3"),
        (LossSum(torch.tensor(2.0), 3), "got a LossSum: give its .count"),
    ],
)
def test_counts_that_cannot_be_are_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        global_count(counts)


def test_counts_stay_where_they_are():
    assert isinstance(global_count([1, 2]), int)
    assert isinstance(global_count([torch.tensor(1), torch.tensor(2)]), torch.Tensor)


def test_the_scale_is_ranks_times_divisor_over_targets():
    assert loss_scale(8, averaged_over=4, extra_divisor=3) == 1.5
    assert loss_scale(torch.tensor(8), averaged_over=4, extra_divisor=3) == 1.5
    assert loss_scale(torch.tensor(7), averaged_over=1) == 1 / 7
    assert loss_scale(0, averaged_over=4) == loss_scale(torch.tensor(0), averaged_over=4) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 1, "averaged_over": 0}, "averaged_over must be at least 1, got 0"),
        ({"count": 1, "averaged_over": 1, "extra_divisor": 0}, "extra_divisor must be at least 1, got 0"),
        ({"count": -1, "averaged_over": 1}, "count must not be negative, got -1"),
    ],
)
def test_a_scale_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        loss_scale(**arguments)


@pytest.mark.parametrize("factor", [0.5, torch.tensor(0.5)], ids=str)
def test_gradients_are_scaled_once_each(factor):
    tied, frozen = torch.ones(2, requires_grad=True), torch.ones(2)
    (2 * tied).sum().backward()
    scale_gradients(iter([tied, frozen, tied]), factor)
    assert tied.grad.tolist() == [1, 1]
    scale_gradients(tied, factor)
    assert tied.grad.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("mask", "weights", "message"),
    [
        (torch.ones(3), None, r"loss_mask must have the shape of token_losses, \(2, 3\), got \(3,\)"),
        (torch.ones(2, 3), torch.ones(2, 1), r"weights must have the shape of token_losses, \(2, 3\), got \(2, 1\)"),
        (torch.ones(2, 3, device="meta"), None, "loss_mask must be on the device of token_losses, cpu, got meta"),
    ],
)
def test_masks_and_weights_that_do_not_fit_are_refused(mask, weights, message):
    with pytest.raises(ValueError, match=message):
        masked_sum(torch.ones(2, 3), mask, weights)
