"""What operators do to complex numbers, in operators on their parts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

_aten = torch.ops.aten
WHY = "it has no form in real numbers here: write it in their parts (z.real, z.imag), or in z.abs() and z.angle()"
TABLE: dict[Any, Callable[..., Any]] = {}
_F = TypeVar("_F", bound=Callable[..., Any])


class Pair(NamedTuple):
    """A complex tensor: its real and its imaginary part, of one shape and type."""

    re: Any
    im: Any


def _of(*operators: Any) -> Callable[[_F], _F]:
    def register(function: _F) -> _F:
        TABLE.update(dict.fromkeys(operators, function))
        return function

    return register


def typed(result: Any, wanted: Any) -> Any:
    """A result with the types that PyTorch gives it, and parts of one shape."""
    if isinstance(result, Pair):
        like = next(part for part in result if isinstance(part, torch.Tensor))
        parts = [part if isinstance(part, torch.Tensor) else torch.full_like(like, part) for part in result]
        if any(part.is_complex() for part in parts):
            raise TypeError("a part of the result is complex")
        return Pair(*torch.broadcast_tensors(*(part.to(wanted.dtype.to_real()) for part in parts)))
    if isinstance(result, torch.Tensor):
        return result.to(wanted.dtype)
    if isinstance(result, list | tuple):
        return [typed(each, value) for each, value in zip(result, wanted, strict=True)]
    return result


def _parts(x: Any) -> Pair:
    """Those of a tensor or a number; the imaginary part of a real one is the number 0."""
    if isinstance(x, Pair):
        return x
    return Pair(x.real, x.imag) if isinstance(x, complex) else Pair(x, 0)


def _is_zero(x: Any) -> bool:
    """True if a part is known to be 0, whatever is computed."""
    return isinstance(x, int | float) and x == 0


def _times(x: Any, y: Any) -> Any:
    """A product of parts, which is left out where it is known."""
    return 0 if _is_zero(x) or _is_zero(y) else x * y


# Operators that move numbers, or are linear, do the same to both parts.


def _both(function: Callable[..., Any]) -> Callable[..., Any]:
    def each(x: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        real, imaginary = (function(part, *args, **kwargs) for part in x)
        if isinstance(real, list | tuple):
            return [Pair(*parts) for parts in zip(real, imaginary, strict=True)]
        return Pair(real, imaginary)

    return each


for _function in (
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten.reshape.default,
    _aten.unsqueeze.default,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.permute.default,
    _aten.transpose.int,
    _aten.t.default,
    _aten.expand.default,
    _aten.slice.Tensor,
    _aten.select.int,
    _aten.diagonal.default,
    _aten.unfold.default,
    _aten.clone.default,
    _aten.alias.default,
    _aten.detach.default,
    _aten.lift_fresh_copy.default,
    _aten.resolve_conj.default,
    _aten.flip.default,
    _aten.roll.default,
    _aten.repeat.default,
    _aten.index_select.default,
    _aten.index.Tensor,
    _aten.gather.default,
    _aten.embedding.default,
    _aten.split.Tensor,
    _aten.split_with_sizes.default,
    _aten.unbind.int,
    _aten.neg.default,
    _aten.sum.default,
    _aten.sum.dim_IntList,
    _aten.mean.default,
    _aten.mean.dim,
    _aten.cumsum.default,
    _aten.tril.default,
    _aten.triu.default,
):
    TABLE[_function] = _both(_function)


@_of(_aten.cat.default)
def _cat(given: Any, dim: int = 0) -> Pair:
    pairs = [each if isinstance(each, Pair) else Pair(each, torch.zeros_like(each)) for each in given]
    return Pair(torch.cat([pair.re for pair in pairs], dim), torch.cat([pair.im for pair in pairs], dim))


@_of(_aten.where.self)
def _where(condition: Any, x: Any, y: Any) -> Pair:
    x, y = _parts(x), _parts(y)
    return Pair(torch.where(condition, x.re, y.re), torch.where(condition, x.im, y.im))


@_of(_aten.constant_pad_nd.default)
def _pad(x: Pair, pad: Any, value: Any = 0) -> Pair:
    return Pair(*(_aten.constant_pad_nd.default(part, pad, number) for part, number in zip(x, _parts(value), strict=True)))


@_of(_aten.masked_fill.Scalar)
def _masked_fill(x: Pair, mask: Any, value: Any) -> Pair:
    return Pair(x.re.masked_fill(mask, _parts(value).re), x.im.masked_fill(mask, _parts(value).im))


def _written(function: Callable[..., Any], at: int) -> Callable[..., Any]:
    """An operator that writes one of its arguments into its first one."""

    def write(*args: Any, **kwargs: Any) -> Pair:
        given = args[at] if isinstance(args[at], Pair) else Pair(args[at], torch.zeros_like(args[at]))
        parts = [(whole, *args[1:at], part, *args[at + 1 :]) for whole, part in zip(args[0], given, strict=True)]
        return Pair(*(function(whole, *rest, **kwargs) for whole, *rest in parts))

    return write


for _function, _at in (
    (_aten.copy.default, 1),
    (_aten.slice_scatter.default, 1),
    (_aten.select_scatter.default, 1),
    (_aten.index_put.default, 2),
):
    TABLE[_function] = _written(_function, _at)


@_of(operator.getitem)
def _getitem(x: Any, at: int) -> Any:
    return x[at]


# Arithmetic


@_of(_aten.add.Tensor, _aten.add.Scalar)
def _add(x: Any, y: Any, alpha: Any = 1) -> Pair:
    (a, b), (c, d) = _parts(x), _parts(y if alpha == 1 else _multiply(y, alpha))
    return Pair(a + c, b + d)


@_of(_aten.sub.Tensor, _aten.sub.Scalar)
def _subtract(x: Any, y: Any, alpha: Any = 1) -> Pair:
    (a, b), (c, d) = _parts(x), _parts(y if alpha == 1 else _multiply(y, alpha))
    return Pair(a - c, b - d)


@_of(_aten.mul.Tensor, _aten.mul.Scalar)
def _multiply(x: Any, y: Any) -> Pair:
    (a, b), (c, d) = _parts(x), _parts(y)
    return Pair(_times(a, c) - _times(b, d), _times(a, d) + _times(b, c))


@_of(_aten.div.Tensor, _aten.div.Scalar)
def _divide(x: Any, y: Any) -> Pair:
    if isinstance(y, complex):
        return _multiply(x, 1 / y)
    (a, b), (c, d) = _parts(x), _parts(y)
    if _is_zero(d):
        return Pair(a / c, b / c)
    # Scaled by the larger part, so that no square leaves the range of floats.
    scale = torch.maximum(c.abs(), d.abs())
    c, d = c / scale, d / scale
    size = (c * c + d * d) * scale
    return Pair((_times(a, c) + _times(b, d)) / size, (_times(b, c) - _times(a, d)) / size)


@_of(_aten.reciprocal.default)
def _reciprocal(x: Pair) -> Pair:
    return _divide(1, x)


@_of(_aten.pow.Tensor_Scalar)
def _power(x: Pair, exponent: Any) -> Pair:
    if exponent in range(1, 5):
        result = x
        for _ in range(int(exponent) - 1):
            result = _multiply(result, x)
        return result
    size, angle = torch.hypot(*x) ** exponent, torch.atan2(x.im, x.re) * exponent
    return Pair(size * angle.cos(), size * angle.sin())


def _product(function: Callable[..., Any]) -> Callable[..., Any]:
    def product(x: Any, y: Any) -> Pair:
        (a, b), (c, d) = _parts(x), _parts(y)
        if _is_zero(b):
            return Pair(function(a.to(c.dtype), c), function(a.to(d.dtype), d))
        if _is_zero(d):
            return Pair(function(a, c.to(a.dtype)), function(b, c.to(b.dtype)))
        return Pair(function(a, c) - function(b, d), function(a, d) + function(b, c))

    return product


for _function in (_aten.mm.default, _aten.bmm.default):
    TABLE[_function] = _product(_function)


@_of(_aten.addmm.default)
def _addmm(x: Any, first: Any, second: Any, *, beta: Any = 1, alpha: Any = 1) -> Pair:
    product = TABLE[_aten.mm.default](first, second)
    return _add(_multiply(x, beta), _multiply(product, alpha))


@_of(_aten.sqrt.default)
def _root(x: Pair) -> Pair:
    return _power(x, 0.5)


@_of(_aten._conj.default, _aten.conj_physical.default, _aten._conj_physical.default)
def _conjugate(x: Pair) -> Pair:
    return Pair(x.re, -x.im)


@_of(_aten.exp.default)
def _exp(x: Pair) -> Pair:
    size = x.re.exp()
    return Pair(size * x.im.cos(), size * x.im.sin())


@_of(_aten.log.default)
def _log(x: Pair) -> Pair:
    return Pair(torch.hypot(*x).log(), torch.atan2(x.im, x.re))


@_of(_aten.sgn.default)
def _sign(x: Pair) -> Pair:
    size = torch.hypot(*x)
    return Pair(*(torch.where(size == 0, torch.zeros_like(part), part / size) for part in x))


# From reals to complex numbers, and back


@_of(_aten.complex.default)
def _complex(real: Any, imaginary: Any) -> Pair:
    return Pair(real, imaginary)


@_of(_aten.polar.default)
def _polar(size: Any, angle: Any) -> Pair:
    return Pair(size * angle.cos(), size * angle.sin())


@_of(_aten.view_as_complex.default)
def _view_as_complex(x: Any) -> Pair:
    return Pair(x.select(-1, 0), x.select(-1, 1))


@_of(_aten.view_as_real.default)
def _view_as_real(x: Pair) -> Any:
    return torch.stack(list(x), -1)


@_of(_aten._to_copy.default)
def _to_copy(x: Any, *, dtype: Any = None, **_: Any) -> Any:
    real, imaginary = _parts(x)
    if dtype is not None and not dtype.is_complex:
        return real.to(dtype)
    return Pair(real, imaginary)


@_of(_aten.full.default)
def _full(shape: Any, value: Any, **given: Any) -> Pair:
    given["dtype"] = (given.get("dtype") or torch.complex64).to_real()
    return Pair(*(torch.full(shape, part, **given) for part in _parts(value)))


@_of(_aten.scalar_tensor.default)
def _scalar(value: Any, **given: Any) -> Pair:
    return _full((), value, **given)


@_of(_aten.full_like.default)
def _full_like(x: Any, value: Any, **_: Any) -> Pair:
    return Pair(*(torch.full_like(_parts(x).re, part) for part in _parts(value)))


@_of(_aten.zeros.default)
def _zeros(shape: Any, **given: Any) -> Pair:
    return _full(shape, 0, **given)


@_of(_aten.ones.default)
def _ones(shape: Any, **given: Any) -> Pair:
    return _full(shape, 1, **given)


@_of(_aten.abs.default)
def _abs(x: Pair) -> Any:
    return torch.hypot(*x)


@_of(_aten.angle.default)
def _angle(x: Pair) -> Any:
    return torch.atan2(x.im, x.re)


@_of(_aten.eq.Tensor, _aten.eq.Scalar)
def _equal(x: Any, y: Any) -> Any:
    (a, b), (c, d) = _parts(x), _parts(y)
    return (a == c) & (b == d)


@_of(_aten.ne.Tensor, _aten.ne.Scalar)
def _differ(x: Any, y: Any) -> Any:
    return ~_equal(x, y)


@_of(_aten.isnan.default)
def _isnan(x: Pair) -> Any:
    return x.re.isnan() | x.im.isnan()


@_of(_aten.sym_size.int)
def _extent(x: Pair, dim: int) -> Any:
    return x.re.shape[dim]


@_of(_aten._assert_tensor_metadata.default)
def _nothing(*_: Any, **__: Any) -> None:
    return None


@_of(_aten._neg_view.default)
def _negated(x: Any) -> Any:
    return Pair(-x.re, -x.im) if isinstance(x, Pair) else -x


@_of(_aten.resolve_neg.default)
def _as_it_is(x: Any) -> Any:
    return x
