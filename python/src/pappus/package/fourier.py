"""Fourier transforms of fixed lengths as matrix products.

A short one is a product with the matrix of its roots of unity. A longer one, of a length that is a product, is two along the
sides of a rectangle with a multiplication between them (Bailey, "FFTs in external or hierarchical memory", 1990), each of which
may be two again. Matrices are weights, rounded once from 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .complex_operators import Pair
from .errors import Unsupported

_aten = torch.ops.aten
# The longest transform that is one product.
MOST = 512
# A weight: a key, whose first part it is called by, and what makes it.
Constant = Callable[[tuple[Any, ...], Callable[[], torch.Tensor]], torch.Tensor]


def _c2c(constant: Constant, x: Pair, dims: Sequence[int], normalization: int, forward: bool) -> Pair:
    scale = _scale(normalization, [x.re.shape[dim] for dim in dims])
    for dim in dims:
        moved = Pair(*(part.movedim(dim, -1) for part in x))
        done = _transform(constant, moved, -1 if forward else 1, scale)
        x, scale = Pair(*(part.movedim(-1, dim) for part in done)), 1.0
    return x


def _r2c(constant: Constant, x: Any, dims: Sequence[int], normalization: int, onesided: bool) -> Pair:
    scale = _scale(normalization, [x.shape[dim] for dim in dims])
    *others, last = dims
    moved = x.movedim(last, -1)
    done = _transform(constant, moved, -1, scale, moved.shape[-1] // 2 + 1 if onesided else None)
    return _c2c(constant, Pair(*(part.movedim(-1, last) for part in done)), others, 0, True)


def _c2r(constant: Constant, x: Pair, dims: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    *others, last = dims
    scale = _scale(normalization, [*(x.re.shape[dim] for dim in others), last_dim_size])
    x = _c2c(constant, x, others, 0, False)
    moved = Pair(*(part.movedim(last, -1) for part in x))
    return _to_reals(constant, moved, last_dim_size, scale).movedim(-1, last)


TABLE: dict[Any, Callable[..., Any]] = {
    _aten._fft_c2c.default: _c2c,
    _aten._fft_r2c.default: _r2c,
    _aten._fft_c2r.default: _c2r,
}


def _scale(normalization: int, lengths: Sequence[Any]) -> float:
    """What results are multiplied with: nothing, a root, or all of the number of values."""
    for length in lengths:
        if not isinstance(length, int):
            raise Unsupported("a Fourier transform along a dimension that is free", "its steps depend on the length")
    return float(math.prod(lengths) ** {0: 0.0, 1: -0.5, 2: -1.0}[normalization])


def _transform(constant: Constant, x: Any, sign: int, scale: float, count: int | None = None) -> Pair:
    """Along the last dimension, of reals or pairs; the first ``count`` values of it."""
    some = x.re if isinstance(x, Pair) else x
    length = some.shape[-1]
    count = length if count is None else count
    if length <= MOST:
        given = (count, sign, scale, isinstance(x, Pair))
        matrix = constant((f"fourier_{length}", *given, some.dtype), lambda: _matrix(length, *given).to(some.dtype))
        both = _product(torch.cat(list(x), -1) if isinstance(x, Pair) else x, matrix)
        return Pair(both[..., :count], both[..., count:])
    first, rest = _sides(length)
    side = _each(lambda part: part.unflatten(-1, (first, rest)).transpose(-1, -2), x)
    side = _transform(constant, side, sign, 1.0)
    key = (f"fourier_{length}_turns", first, sign, some.dtype)
    turns = constant(key, lambda: torch.stack(_roots(rest, first, length, sign)).to(some.dtype))
    cosine, sine = turns[0], turns[1]
    side = Pair(side.re * cosine - side.im * sine, side.re * sine + side.im * cosine)
    side = _transform(constant, _each(lambda part: part.transpose(-1, -2), side), sign, scale)
    return Pair(*(part.transpose(-1, -2).flatten(-2)[..., :count] for part in side))


def _to_reals(constant: Constant, x: Pair, length: int, scale: float) -> Any:
    """The inverse transform of half of what is symmetrical: reals."""
    count = x.re.shape[-1]
    if length <= MOST:
        key = (f"fourier_{length}_to_reals", count, scale, x.re.dtype)
        matrix = constant(key, lambda: _matrix_to_reals(length, count, scale).to(x.re.dtype))
        return _product(torch.cat(list(x), -1), matrix)
    # The other half are the conjugates, backwards.
    others = _each(lambda part: part[..., 1 : length - count + 1].flip(-1), x)
    whole = Pair(torch.cat([x.re, others.re], -1), torch.cat([x.im, -others.im], -1))
    return _transform(constant, whole, 1, scale).re


def _product(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    # Of 64-bit floats there is no template of products, but a reduction.
    return (x[..., None] * matrix).sum(-2) if x.dtype == torch.float64 else x @ matrix


def _each(function: Callable[[Any], Any], x: Any) -> Any:
    return Pair(*map(function, x)) if isinstance(x, Pair) else function(x)


def _sides(length: int) -> tuple[int, int]:
    """Of a rectangle with so many values, as near to a square as can be."""
    sides = [(side, length // side) for side in range(2, MOST + 1) if length % side == 0]
    # What is left is divided again, down to its largest prime.
    if not sides or _largest_prime(length) > MOST:
        better = next(n for n in range(length + 1, 2 * length) if _largest_prime(n) <= 7)
        why = f"the prime {_largest_prime(length)} divides it, and {MOST} is the most: give another length, such as n={better}"
        raise Unsupported(f"a Fourier transform of {length} values", why)
    return min(sides, key=max)


def _largest_prime(number: int) -> int:
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor:
            divisor += 1
        else:
            number //= divisor
    return number


def _roots(rows: int, columns: int, length: int, sign: int) -> list[torch.Tensor]:
    """Cosines and sines of a turn's parts: row times column of so many."""
    products = torch.arange(rows)[:, None] * torch.arange(columns) % length
    angles = products.to(torch.float64) * (2 * math.pi / length)
    return [angles.cos(), sign * angles.sin()]


def _matrix(length: int, count: int, sign: int, scale: float, is_complex: bool) -> torch.Tensor:
    """What reals, or real and imaginary parts behind each other, are multiplied with, to such parts."""
    cosine, sine = _roots(length, count, length, sign)
    rows = [torch.cat([cosine, sine], 1)]
    if is_complex:
        rows.append(torch.cat([-sine, cosine], 1))
    return torch.cat(rows) * scale


def _matrix_to_reals(length: int, count: int, scale: float) -> torch.Tensor:
    cosine, sine = _roots(count, length, length, 1)
    # Each value but the first and the middle one stands for its conjugate, too; of those two no imaginary part is looked at.
    twice = torch.full((count, 1), 2.0, dtype=torch.float64)
    twice[0] = 1
    if length % 2 == 0:
        twice[length // 2 :] = 1
    return torch.cat([cosine * twice, -sine * twice]) * scale
