from collections import defaultdict

import numpy as np
import pytest
import torch

from packdata.batches import Column, PackingCollator
from packdata.batches.geometry import Shape, lay_out
from packdata.layout import lengths_from_segment_ids


def doc(ids, **columns):
    return {"input_ids": ids, **columns}


def segments(feature):
    return lengths_from_segment_ids(feature["segments"])


LOGPROBS = {"logprobs": Column(per="prediction", dtype=torch.float32)}
REWARDS = {"rewards": Column(per="document", dtype=torch.float32)}
STATES = {"states": Column(per="token", dtype=torch.float32, tail=(2,))}

BAD_FEATURES = {
    "H6 no boundaries": ({"boundaries": "seq_lengths"}, [doc([1, 2])], r"feature 0 lacks 'seq_lengths'.*remove_unused"),
    "H6 some without boundaries": (
        {},
        [doc([1, 2], seq_lengths=[1, 1]), doc([3, 4])],
        "feature 1 lacks 'seq_lengths', though feature 0 has it",
    ),
    "H6 first without boundaries": ({}, [doc([1]), doc([3], seq_lengths=[1])], "feature 0 lacks 'seq_lengths'"),
    "H6 lengths short": (
        {},
        [doc([1, 2, 3, 4], seq_lengths=[2, 1])],
        "feature 0: seq_lengths adds up to 3, .*4 tokens",
    ),
    "H6 lengths long": (
        {},
        [doc([1], seq_lengths=[1]), doc([1], seq_lengths=[2])],
        "feature 1: .* adds up to 2, .* 1 ",
    ),
    "boundaries of padding": (
        {"boundaries": segments},
        [doc([1, 2], segments=[1, 0])],
        "segments adds up to 1, but .* 2",
    ),
    "boundaries of nothing": ({"boundaries": segments}, [doc([1, 2])], "feature 0 lacks 'segments'; it has"),
    "float lengths": ({}, [doc([1], seq_lengths=[1.0])], "feature 0: seq_lengths must be integers, got dtype float64"),
    "negative lengths": ({}, [doc([1], seq_lengths=[2, -1])], "feature 0: seq_lengths must not be negative"),
    "scalar lengths": ({}, [doc([1], seq_lengths=1)], "feature 0: seq_lengths must be 1-D"),
    "no ids": ({}, [doc([1]), {"labels": [1]}], "feature 1 lacks 'input_ids', though feature 0 has it"),
    "ids of floats": ({}, [doc([1]), doc([1.0])], "feature 1: input_ids must be 1-D integers.*float64"),
    "ids in a batch dimension": ({}, [doc(torch.ones(1, 3, dtype=torch.int64))], r"feature 0: input_ids .* \(1, 3\)"),
    "ids of text": ({}, [doc("abc")], "feature 0: input_ids must be 1-D integers"),
    "ragged ids": ({}, [doc([[1], [2, 3]])], "feature 0: input_ids must be one value per token"),
    "scalar feature": ({}, [1, 2], "feature 0: input_ids must be 1-D integers"),
    "ids of booleans": ({}, [doc([True, False])], "feature 0: input_ids must be 1-D integers.*got bool"),
    "labels of a list of booleans": (
        {},
        [doc([1, 2], labels=[False, True])],
        "feature 0: labels must be 1-D integers.*got bool",
    ),
    "ids past int64": ({}, [doc(np.array([2**63], np.uint64))], r"feature 0: input_ids must be less than 2\*\*63"),
    "labels past int64": (
        {},
        [doc([1, 2], labels=np.array([1, 2**64 - 100], np.uint64))],
        r"feature 0: labels must be less than 2\*\*63",
    ),
    "ids past int64 of another byte order": (
        {"targets": "completion_mask"},
        [doc(np.array([2**63 + 5, 1], ">u8"), completion_mask=[0, 1])],
        r"feature 0: input_ids must be less than 2\*\*63",
    ),
    "masked ids": ({}, [doc(np.ma.masked_array([1, 2], [False, True]))], "feature 0: .* got a masked array: fill it"),
    "a column that a defaultdict makes up": ({}, [defaultdict(list)], "feature 0 lacks 'input_ids'"),
    "negative ids": ({}, [doc([1]), doc([1, -100])], "feature 1: input_ids must not be negative where.*got -100"),
    "learnt negative ids": (
        {},
        [doc([-200, 1, -1], completion_mask=[0, 1, 1])],
        "feature 0: input_ids must not be negative where they are learnt, got -1",
    ),
    "ids on a meta device": ({}, [doc(torch.ones(2, device="meta").long())], "feature 0: input_ids must be one value"),
    "sparse ids": ({}, [doc(torch.ones(2).long().to_sparse())], "feature 0: input_ids must be one value per token"),
    "undeclared names of several types": ({}, [{"input_ids": [1], 1: 2, "x": 3}], r"not declared: \[1, 'x'\]"),
    "nothing": ({}, None, "features must be a list of features, got one NoneType"),
    "no value for a target across documents": (
        {"columns": LOGPROBS, "cross_document_targets": True},
        [doc([1, 2], logprobs=[0.5]), doc([3, 4], logprobs=[0.5])],
        r"feature 1: logprobs has 1 values; per prediction there are 2 \(one per token\)",
    ),
    "a single feature": ({}, doc([1]), "features must be a list of features, got one dict"),
    "missing labels": ({"targets": "labels"}, [doc([1, 2])], r"feature 0 lacks 'labels'; it has \['input_ids'\]"),
    "missing mask": (
        {"targets": ("labels", "completion_mask")},
        [doc([1], labels=[1])],
        "feature 0 lacks 'completion_mask'.*remove_unused_columns=False",
    ),
    "labels here and there": (
        {},
        [doc([1], labels=[1]), doc([2])],
        "feature 1 lacks 'labels', though feature 0 has it",
    ),
    "short labels": ({}, [doc([1], labels=[1]), doc([1, 2], labels=[1])], "feature 1: labels has 1 values, but .* 2"),
    "long mask": ({}, [doc([1, 2], completion_mask=[1, 1, 1])], "feature 0: completion_mask has 3 values, but .* 2"),
    "labels of floats": ({}, [doc([1, 2], labels=[1.0, 2.0])], "feature 0: labels must be 1-D integers.*float64"),
    "K1 scalar label": (
        {},
        [doc([1, 2], labels=1)],
        r"feature 0: labels must be 1-D integers, one value per token.*\(\)",
    ),
    "labels of booleans": ({}, [doc([1], labels=np.array([True]))], "feature 0: labels must be 1-D integers"),
    "ignore index -1": ({}, [doc([1], labels=[1]), doc([1, 2], labels=[-1, 2])], "feature 1: labels must be .* got -1"),
    "mask of floats": ({}, [doc([1], completion_mask=[0.5])], "completion_mask must be 1-D booleans or integers"),
    "undeclared text": (
        {},
        [doc([1]), doc([2], text="hi")],
        r"feature 1 has columns that were not declared: \['text'\]",
    ),
    "undeclared positions": ({}, [doc([1], position_ids=[0])], r"\['position_ids'\] \(positions may tell boundaries"),
    "J6 left padding, short mask": (
        {},
        [doc([0, 0, 5, 6], attention_mask=[0, 0, 1, 1], completion_mask=[0, 0, 1])],
        "feature 0: completion_mask has 3 values, but input_ids has 4",
    ),
    "I8 numbered mask": ({}, [doc([5, 6, 0], attention_mask=[1, 2, 0])], "must be 0 or 1, got 2; .*segment_ids"),
    "negative mask": ({}, [doc([5, 6], attention_mask=[1, -1])], "feature 0: attention_mask must be 0 or 1, got -1"),
    "mask with a hole": ({}, [doc([5, 0, 6], attention_mask=[1, 0, 1])], "attention_mask has a hole at token 1"),
    "mask too short": ({}, [doc([5, 6], attention_mask=[1])], "feature 0: attention_mask must be 2 integers"),
    "2-D mask": ({}, [doc([5, 6], attention_mask=[[1, 1]])], r"attention_mask must be 2 integers.*\(1, 2\)"),
    "float mask": ({}, [doc([5], attention_mask=[1.0])], "attention_mask must be 1 integers.*float64"),
    "too many tokens": ({"pad_to": 4}, [doc([1, 2]), doc([3, 4, 5])], "feature 1: input_ids bring row 0 to 5 slots"),
    "too many with alignment": (
        {"pad_to": 6, "align": 4},
        [[1], [2]],
        r"feature 1: .* 8 slots \(align=4\), over pad_to=6",
    ),
    "a long row": ({"pad_to": 2, "layout": "rows"}, [[1], [1, 2, 3]], "feature 1: input_ids bring row 1 to 3 slots"),
    "too many documents": ({"max_documents": 2}, [[1], [1], [1]], "feature 2 brings row 0 to 3 documents"),
    "too many in a pack": (
        {"max_documents": 1, "layout": "rows"},
        [doc([1], seq_lengths=[1]), doc([1, 2], seq_lengths=[1, 1])],
        "feature 1 brings row 1 to 2 documents, over max_documents=1",
    ),
    "C7 a long segment": ({"max_seqlen": 2}, [[1], [1, 2, 3]], "feature 1: .* segment of 3 slots .*max_seqlen=2"),
    "C7 a long joined segment": (
        {"max_seqlen": 3, "cross_document_attention": True},
        [[1, 2], [1, 2]],
        "segment of 4 slots",
    ),
    "missing column": ({"columns": LOGPROBS}, [doc([1])], "feature 0 lacks 'logprobs'"),
    "O1 wrong length": (
        {"columns": LOGPROBS},
        [doc([1, 2, 3, 4], logprobs=[0.5])],
        r"feature 0: logprobs has 1 values; .*4",
    ),
    "O1 short in a pack": (
        {"columns": LOGPROBS},
        [doc([1, 2, 3, 4], seq_lengths=[2, 2], logprobs=[0.5, 0.5, 0.5])],
        "feature 0: logprobs has 3 values",
    ),
    "O1 no numbers": ({"columns": LOGPROBS}, [doc([1], logprobs=["a"])], "feature 0: logprobs must be 1-D numbers"),
    "O2 one for two": ({"columns": REWARDS}, [doc([1, 2], seq_lengths=[1, 1], rewards=0.5)], "value for each of 2"),
    "O2 two for one": ({"columns": REWARDS}, [doc([1, 2], rewards=[0.5, 1.0])], "value for each of 1 documents"),
    "O2 missing": ({"columns": REWARDS}, [doc([1], rewards=1), doc([1])], "feature 1 lacks 'rewards'"),
    "vectors of another width": (
        {"columns": STATES},
        [doc([1], states=np.ones((1, 3)))],
        r"values of shape \(2,\), got \(3,\)",
    ),
    "numbers for vectors": ({"columns": STATES}, [doc([1], states=[1.0])], "feature 0: states must be 2-D numbers"),
    "floats for integers": (
        {"columns": {"depth": Column(per="token", dtype=torch.int32)}},
        [doc([1], depth=[0.5])],
        "feature 0: depth is float64, which does not cast to torch.int32",
    ),
    "numbers too large": (
        {"columns": {"depth": Column(per="token", dtype=torch.int8)}},
        [doc([1, 2], depth=[-5, 300])],
        "feature 0: depth has values from -5 to 300, too many for torch.int8",
    ),
    "numbers that are no booleans": (
        {"columns": {"depth": Column(per="token", dtype=torch.bool)}},
        [doc([1, 2], depth=[0, 2])],
        "feature 0: depth has values from 0 to 2, too many for torch.bool",
    ),
    "floats too large": (
        {"columns": {"depth": Column(per="token", dtype=torch.float16)}},
        [doc([1, 2], depth=[float("inf"), 1e5])],
        r"feature 0: depth has values from 0.0 to 100000.0, too many for torch.float16",
    ),
    "integers too large for floats": (
        {"columns": {"depth": Column(per="token", dtype=torch.float16)}},
        [doc([1, 2], depth=[1, 70_000])],
        "feature 0: depth has values from 0 to 70000, too many for torch.float16",
    ),
}


@pytest.mark.parametrize("name", BAD_FEATURES)
def test_bad_features_are_named_by_index_and_key(name):
    options, features, message = BAD_FEATURES[name]
    with pytest.raises(ValueError, match=message):
        PackingCollator(**options)(features)


BAD_OPTIONS = [
    ({"pad_to": 0}, "pad_to must be an integer of at least 1 or None, got 0"),
    ({"pad_token_id": -1}, "pad_token_id must be an integer from 0 to 2147483647, got -1"),
    ({"position_offset": -1}, "position_offset must be an integer from 0 to 2147483647, got -1"),
    ({"align": 0}, "align must be an integer of at least 1, got 0"),
    ({"padding_segment": -1}, "padding_segment must be an integer of at least 1, got -1"),
    ({"max_documents": 0}, "max_documents must be an integer of at least 1 or None, got 0"),
    ({"pad_to": 12, "pad_to_multiple_of": 8}, "pad_to=12 is no multiple of pad_to_multiple_of=8"),
    ({"targets": ()}, "targets must be None"),
    *(({"targets": wrong}, "targets must be None") for wrong in (5, True, b"labels", ["labels", 5])),
    *(
        ({name: True}, f"{name} must be an integer")
        for name in ("pad_to", "pad_to_multiple_of", "max_documents", "max_seqlen", "padding_segment", "align")
    ),
    *(
        ({name: wrong}, f"{name} must be an integer")
        for name in ("pad_token_id", "position_offset")
        for wrong in (True, 2**63)
    ),
    *(({f"cross_document_{what}": "no"}, "must be True or False, got 'no'") for what in ("attention", "targets")),
    ({"boundaries": np.array([1, 2])}, "boundaries must be None"),
    ({"columns": ["depth"]}, r"columns must map names to Columns, got \['depth'\]"),
    ({"output": "to_jax"}, "output must be None or a callable"),
    ({"columns": {"labels": Column(per="token", dtype=torch.int64)}}, "columns cannot hold 'labels'"),
    ({"columns": {"max_seqlen": Column(per="token", dtype=torch.int64)}}, "columns cannot hold 'max_seqlen'"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_contradictory_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PackingCollator(**options)


def test_more_slots_than_int32_counts_are_refused():
    one = np.array([2**31])
    with pytest.raises(ValueError, match="1 rows of 2147483648 slots are over 2147483647"):
        lay_out(one, one, np.zeros(1, np.int64), features=1, reach_of=None, shape=Shape())


@pytest.mark.parametrize(
    ("dtype", "pad"),
    [
        *((torch.int64, pad) for pad in (0.5, float("nan"), float("inf"), 2**63, "0", None)),
        *((torch.int8, 300), (torch.uint8, -1), (torch.bool, 2)),
        *((torch.float16, 1e6), (torch.float8_e4m3fn, 1000), (torch.float64, "1"), (torch.float32, "x")),
    ],
)
def test_a_column_holds_its_pad_as_it_is(dtype, pad):
    with pytest.raises(ValueError, match=f"dtype {dtype} cannot hold pad={pad!r}"):
        Column(per="token", dtype=dtype, pad=pad)


@pytest.mark.parametrize("tail", [4, [2], (-1,), ("a",), (True,), None])
def test_the_tail_of_a_column_is_a_shape(tail):
    with pytest.raises(ValueError, match="tail must be the shape of one value"):
        Column(per="token", dtype=torch.float32, tail=tail)
