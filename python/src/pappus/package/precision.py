"""How kernels multiply float32 where PyTorch lowered a model, for all of its matrix products and convolutions.

Full float32 products run on the multiprocessors' ordinary units. Tensor cores take TF32, of which three products
give a result about as exact as one of float32 (``tf32x3``: each factor is split into what TF32 has of it and the rest), two or
three times as fast. Triton has all three; PyTorch asks for full ones or for TF32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .errors import PackageError

#: What ``float32`` may be.
CHOICES = ("ieee", "tf32", "tf32x3")
#: TF32 where PyTorch is told that it may; else as exact as in full, which is ``tf32x3``.
AS_TOLD = "as-told"


def check(float32: str | None) -> str:
    """Returns it, or says what there is."""
    if float32 is None:
        return AS_TOLD
    if float32 in CHOICES:
        return float32
    raise PackageError(f"float32={float32!r}: expected one of {', '.join(CHOICES)}, or None for what PyTorch is told")


def told(float32: str, *, tf32: bool) -> str:
    """How a product is computed for which PyTorch may use TF32, or may not."""
    if float32 == AS_TOLD:
        return "tf32" if tf32 else "tf32x3"
    return float32


@contextlib.contextmanager
def products(float32: str | None) -> Iterator[None]:
    """Has Triton multiply float32 so in what it compiles meanwhile; where a target cannot, as ``ieee`` says."""
    if float32 is None:
        yield
        return
    from triton.language.semantic import TritonSemantic

    dot = TritonSemantic.dot

    def chosen(self: Any, lhs: Any, rhs: Any, acc: Any, input_precision: Any, *rest: Any, **named: Any) -> Any:
        if lhs.dtype.is_fp32() and rhs.dtype.is_fp32():
            wanted = told(float32, tf32=input_precision == "tf32")
            input_precision = wanted if wanted in self.builder.options.allowed_dot_input_precisions else "ieee"
        return dot(self, lhs, rhs, acc, input_precision, *rest, **named)

    TritonSemantic.dot = chosen
    try:
        yield
    finally:
        TritonSemantic.dot = dot
