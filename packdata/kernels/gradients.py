"""The gradients of a projection, added up chunk by chunk in the accumulate dtype, and good for one derivative."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from packdata.kernels.head import Head


class ProjectionGradients:
    """What chunks add to: the gradients of rows, weight and bias; None for one that nobody wants.

    Args:
        inputs: Rows, shape ``(rows, H)``; weight, shape ``(vocabulary, H)``; bias, shape ``(vocabulary,)``, or None.
        wanted: Which of the three need a gradient.
        head: How operands are multiplied, and the dtype of the gradients.
    """

    def __init__(self, inputs: Sequence[Tensor | None], wanted: Sequence[bool], head: Head) -> None:
        self._inputs = [x if want else None for x, want in zip(inputs, wanted, strict=True)]
        self._head = head
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        rows = self._inputs[0]
        self._rows = None if rows is None else torch.empty_like(rows, dtype=head.accumulate)

    def __bool__(self) -> bool:
        return any(x is not None for x in self._inputs)

    def add(self, gradient: Tensor, part: slice, chunk: Tensor, weight: Tensor) -> None:
        """Add one chunk's share.

        Args:
            gradient: Of the projection's result, accumulate dtype, shape ``(chunk, vocabulary)``.
            part: Which rows the chunk is; every row comes once.
            chunk: Those rows, an operand of the product.
            weight: The weight, an operand of the product.
        """
        operand = gradient.to(chunk.dtype)
        if self._rows is not None:
            self._rows[part] = self._head.product(operand, weight)
        if self._inputs[1] is not None:
            self._weight = self._plus_product(self._weight, operand.t(), chunk)
        if self._inputs[2] is not None:
            self._bias = gradient.sum(0) if self._bias is None else self._bias.add_(gradient.sum(0))

    def finish(self) -> list[Tensor | None]:
        """Return the three, zeros where no row came."""
        made = (self._rows, self._weight, self._bias)
        return [
            torch.zeros_like(x, dtype=self._head.accumulate) if x is not None and of_x is None else of_x
            for x, of_x in zip(self._inputs, made, strict=True)
        ]

    def _plus_product(self, total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
        if total is None:
            return self._head.product(a, b)
        return total.addmm_(a, b) if a.dtype == total.dtype else total.add_(self._head.product(a, b))


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
