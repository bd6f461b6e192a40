"""The fixed-shape, document-safe parts of drafter training.

A speculative-decoding drafter trains on the hidden states of a large target model: capture them from a dense batch,
pack the real rows into one stream, draw anchors, mask and supervise the draft blocks, all at one fixed shape::

    HiddenStateCapture -> pack_hidden_states -> select_anchors -> anchor_block_mask, draft_targets -> draft_loss
"""

from packdata.drafting.acceptance import acceptance_length
from packdata.drafting.anchor_blocks import anchor_block_mask
from packdata.drafting.anchor_mask import anchor_block_mask_mod, anchor_dense_mask
from packdata.drafting.anchor_windows import AnchorWindows, anchor_windows
from packdata.drafting.anchors import select_anchors
from packdata.drafting.capture import HiddenStateCapture
from packdata.drafting.drafter import BlockDrafter, DrafterGeometry
from packdata.drafting.layers import convert_layer
from packdata.drafting.loss import draft_loss
from packdata.drafting.noise import add_noise
from packdata.drafting.packing import pack_hidden_states
from packdata.drafting.slots import document_remaining
from packdata.drafting.static_blocks import StaticBlocks
from packdata.drafting.targets import DraftTargets, draft_targets, targets_ahead

__all__ = [
    "AnchorWindows",
    "BlockDrafter",
    "DraftTargets",
    "DrafterGeometry",
    "HiddenStateCapture",
    "StaticBlocks",
    "acceptance_length",
    "add_noise",
    "anchor_block_mask",
    "anchor_block_mask_mod",
    "anchor_dense_mask",
    "anchor_windows",
    "convert_layer",
    "document_remaining",
    "draft_loss",
    "draft_targets",
    "pack_hidden_states",
    "select_anchors",
    "targets_ahead",
]
