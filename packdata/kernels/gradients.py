"""The gradients of a projection, added up chunk by chunk in the accumulate dtype, and good for one derivative."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packdata.kernels.head import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionGradients:
    """What chunks add to; None for an input that needs no gradient.

    Attributes:
        rows: Shape ``(rows, H)``.
        weight: Shape ``(vocabulary, H)``.
        bias: Shape ``(vocabulary,)``.
    """

    rows: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def zeros(
        cls, inputs: Sequence[Tensor | None], wanted: Sequence[bool], dtype: torch.dtype
    ) -> "ProjectionGradients":
        """Begin with zeros for the wanted ones of rows, weight and bias."""
        rows, weight, bias = (
            torch.zeros_like(x, dtype=dtype, memory_format=torch.contiguous_format) if x is not None and want else None
            for x, want in zip(inputs, wanted, strict=True)
        )
        return cls(rows=rows, weight=weight, bias=bias)

    def __bool__(self) -> bool:
        return any(x is not None for x in self.all())

    def all(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the three."""
        return self.rows, self.weight, self.bias

    def add(self, gradient: Tensor, part: slice, chunk: Tensor, weight: Tensor, head: Head) -> None:
        """Add one chunk's share.

        Args:
            gradient: Of the projection's result, accumulate dtype, shape ``(chunk, vocabulary)``.
            part: Which rows the chunk is.
            chunk: Those rows, an operand of the product.
            weight: The weight, an operand of the product.
            head: How operands are multiplied.
        """
        operand = gradient.to(chunk.dtype)
        if self.rows is not None:
            self.rows[part] = head.product(operand, weight)
        if self.bias is not None:
            self.bias.add_(gradient.sum(0))
        if self.weight is not None and operand.dtype == self.weight.dtype:
            self.weight.addmm_(operand.t(), chunk)
        elif self.weight is not None:
            self.weight.add_(head.product(operand.t(), chunk))


def first_order_only(gradient: Tensor, *inputs: Tensor | None) -> Tensor:
    """Return a gradient that raises when it is differentiated with respect to what it was made from.

    Torch's ``once_differentiable`` stays silent where the incoming gradient has no graph of its own, as in
    ``torch.autograd.grad(loss, x, create_graph=True)``: a second derivative would miss a term without a word.
    """
    if not torch.is_grad_enabled():  # nobody asked for a graph of this backward pass
        return gradient
    return _FirstOrderOnly.apply(gradient, *inputs)  # type: ignore[no-any-return, no-untyped-call]


class _FirstOrderOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *inputs: Tensor | None) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise RuntimeError(
            "linear_cross_entropy and token_logprobs have no second derivative: "
            "compute the logits with F.linear where one is needed"
        )
