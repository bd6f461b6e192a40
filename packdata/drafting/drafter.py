"""A small block drafter in the manner of DFlash, for recipes, benchmarks and tests.

The target's captured states are projected once to the drafter's width and stand as keys and values before the draft
slots in every layer; a block of draft slots, one token and masks behind it, is filled in a single pass::

    hidden_states [1, T, K·H] -> context [1, T, H] ------- keys, values ----+
    [anchor, MASK, MASK, …]   -> slots [1, A·B, H] -- queries, keys, values +-> layers -> states [1, A·B, H]

The width ``H`` is the target's, since its embedding and head are shared. Everything else is the drafter's own.
Block diffusion for flash speculative decoding, https://github.com/z-lab/dflash.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from packdata.drafting.anchor_windows import AnchorWindows
from packdata.planning.edge import require_at_least

AnchorMask = Tensor | BlockMask | AnchorWindows


@dataclass(frozen=True, kw_only=True)
class DrafterGeometry:
    """The sizes of a drafter.

    Attributes:
        hidden_size: Width of the states (``H``), the target's.
        captured: Captured layers of the target (``K``).
        layers: Layers of the drafter.
        heads: Query heads; need not be the target's, like all that follows.
        kv_heads: Key and value heads, a divisor of ``heads``.
        head_dim: Width of a head, even; need not be ``hidden_size / heads``.
        intermediate_size: Width inside the feed-forward.
        rope_theta: Base of the rotary embedding.
    """

    hidden_size: int
    captured: int
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 256
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        for name in ("hidden_size", "captured", "layers", "heads", "kv_heads", "head_dim", "intermediate_size"):
            require_at_least(getattr(self, name), 1, name)
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ValueError(
                f"kv_heads must divide heads and head_dim must be even, "
                f"got {self.kv_heads}, {self.heads} and {self.head_dim}"
            )


class BlockDrafter(nn.Module):
    """Fill blocks of draft slots in one pass, from the target's hidden states."""

    def __init__(self, geometry: DrafterGeometry) -> None:
        super().__init__()
        width = geometry.hidden_size
        self.geometry = geometry
        self.mask_embedding = nn.Parameter(torch.randn(width) * 0.02)
        self.fuse = nn.Linear(geometry.captured * width, width, bias=False)
        self.context_norm = nn.RMSNorm(width)
        self.layers = nn.ModuleList(_Layer(geometry) for _ in range(geometry.layers))
        self.norm = nn.RMSNorm(width)

    def forward(
        self,
        hidden_states: Tensor,
        position_ids: Tensor,
        anchor_embeddings: Tensor,
        slot_positions: Tensor,
        mask: AnchorMask,
    ) -> Tensor:
        """Give the state of every draft slot, ready for the target's head.

        Args:
            hidden_states: The target's states, shape ``(1, T, K * H)``.
            position_ids: Their positions, int64, shape ``(1, T)``.
            anchor_embeddings: The target's embeddings of the anchors' tokens, shape ``(A, H)``.
            slot_positions: Positions of the draft slots, int64, shape ``(A * B,)``.
            mask: What the draft slots see: from `anchor_block_mask` (flex attention), `anchor_windows` or
                `anchor_dense_mask` (SDPA).

        Returns:
            States, shape ``(1, A * B, H)``.
        """
        anchors, width = anchor_embeddings.shape
        block_size = slot_positions.shape[0] // anchors
        masks = self.mask_embedding.expand(anchors, block_size - 1, width)
        slots = torch.cat([anchor_embeddings[:, None], masks], 1).reshape(1, anchors * block_size, width)
        context = self.context_norm(self.fuse(hidden_states))
        rotation = _rotation(torch.cat([position_ids[0], slot_positions]), self.geometry, slots.dtype)
        for layer in self.layers:
            slots = layer(slots, context, rotation, mask)
        states: Tensor = self.norm(slots)
        return states


class _Layer(nn.Module):
    def __init__(self, geometry: DrafterGeometry) -> None:
        super().__init__()
        width, head_dim = geometry.hidden_size, geometry.head_dim
        self.head_dim = head_dim
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query = nn.Linear(width, geometry.heads * head_dim, bias=False)
        self.key_value = nn.Linear(width, 2 * geometry.kv_heads * head_dim, bias=False)
        self.out = nn.Linear(geometry.heads * head_dim, width, bias=False)
        self.up = nn.Linear(width, 2 * geometry.intermediate_size, bias=False)
        self.down = nn.Linear(geometry.intermediate_size, width, bias=False)

    def forward(self, slots: Tensor, context: Tensor, rotation: tuple[Tensor, Tensor], mask: AnchorMask) -> Tensor:
        normed = self.attention_norm(slots)
        slots = slots + self.out(self._attend(normed, torch.cat([context, normed], 1), rotation, mask))
        gate, up = self.up(self.feed_forward_norm(slots)).chunk(2, -1)
        result: Tensor = slots + self.down(silu(gate) * up)
        return result

    def _attend(self, queries: Tensor, keys: Tensor, rotation: tuple[Tensor, Tensor], mask: AnchorMask) -> Tensor:
        def heads(states: Tensor) -> Tensor:
            return states.reshape(1, states.shape[1], -1, self.head_dim).transpose(1, 2)

        query = heads(self.query(queries))
        key, value = (heads(half) for half in self.key_value(keys).chunk(2, -1))
        cosine, sine = rotation
        last = query.shape[2]
        query = _rotate(rms_norm(query, (self.head_dim,)), cosine[-last:], sine[-last:])
        key = _rotate(rms_norm(key, (self.head_dim,)), cosine, sine)
        return _attention(query, key, value, mask).transpose(1, 2).flatten(2)


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: AnchorMask) -> Tensor:
    """Attend, all ``(1, heads, slots, head_dim)``; keys are the context's and then the blocks'."""
    if isinstance(mask, BlockMask):
        attended = flex_attention(query, key, value, block_mask=mask, enable_gqa=True)
        assert isinstance(attended, Tensor)
        return attended
    if isinstance(mask, Tensor):
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    return _windowed_attention(query, key, value, mask)


def _windowed_attention(query: Tensor, key: Tensor, value: Tensor, windows: AnchorWindows) -> Tensor:
    """Gather the keys of each block, and attend block by block, as a batch."""
    (blocks, seen), (heads, _, width) = windows.keys.shape, key.shape[1:]
    groups = query.shape[1] // heads
    # Whole rows at once: the backward of plain indexing adds value by value, several times as slow on a CPU.
    rows = torch.cat([key[0], value[0]]).transpose(0, 1).index_select(0, windows.keys.flatten())
    key, value = rows.view(blocks, seen, 2 * heads, width).transpose(1, 2).chunk(2, 1)
    # The query heads that share a key head stand side by side as queries: SDPA would copy the keys for each of them.
    grouped = query.view(heads, groups, blocks, -1, width).permute(2, 0, 1, 3, 4).reshape(blocks, heads, -1, width)
    attended = scaled_dot_product_attention(grouped, key, value, attn_mask=windows.mask.repeat(1, 1, groups, 1))
    return attended.view(blocks, heads, groups, -1, width).permute(1, 2, 0, 3, 4).reshape(query.shape)


def _rotation(positions: Tensor, geometry: DrafterGeometry, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    half = torch.arange(geometry.head_dim // 2, device=positions.device, dtype=torch.float64)
    frequencies = geometry.rope_theta ** (-2 * half / geometry.head_dim)
    angles = (positions[:, None] * frequencies).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = states.chunk(2, -1)
    return states * cosine + torch.cat([-second, first], -1) * sine
