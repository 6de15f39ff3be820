"""Operators that PyTorch leaves to a library, written in others that have Triton kernels.

Each is computed as PyTorch does, by whatever steps suit many threads: sorting by merging sorted runs, whose elements find their
places by binary search; the largest ones by sorting parts and sorting what is left of them again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._inductor import decomposition

from . import boxes, sampling, single_rows, volumes
from .errors import Unsupported

_aten = torch.ops.aten
# What PyTorch sorts in one kernel of Triton's.
RUN = 512
# A reduction that asks every element whether it belongs goes over this many at most.
_MOST_ASKED = 1 << 34
_TABLE: dict[Any, Callable[..., Any]] = {}


@contextlib.contextmanager
def used() -> Iterator[None]:
    """Has Inductor decompose these operators meanwhile."""
    cached = decomposition.fast_random_decomps
    cached.cache_clear()
    try:
        others = boxes.decompositions() | sampling.TABLE | single_rows.TABLE | {_aten.convolution.default: volumes.convolution}
        with mock.patch.dict(decomposition.decompositions, _TABLE | others):
            yield
    finally:
        cached.cache_clear()


def _of(*operators: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _TABLE.update(dict.fromkeys(operators, function))
        return function

    return register


def _extent(x: torch.Tensor, dim: int, what: str) -> int:
    extent = x.shape[dim] if x.dim() else 1
    if not isinstance(extent, int):
        raise Unsupported(what, f"dimension {dim} is free, and the steps of sorting depend on how much there is")
    return extent


# Sorting


def _keys(x: torch.Tensor, descending: bool) -> torch.Tensor:
    """Whole numbers in the order of the values: of floats their bits, those of negative ones turned, NaN above all."""
    if x.dtype.is_floating_point:
        wide = x if x.dtype == torch.float64 else x.to(torch.float32)
        whole, bits = (torch.int64, 63) if wide.dtype == torch.float64 else (torch.int32, 31)
        most = (1 << bits) - 1
        # Both zeros are one.
        seen = torch.where(wide == 0, torch.zeros_like(wide), wide).view(whole)
        keys = torch.where(seen < 0, seen ^ most, seen)
        keys = torch.where(torch.isnan(wide), torch.full_like(keys, most), keys)
    elif x.dtype == torch.uint64:
        keys = x.view(torch.int64) ^ torch.iinfo(torch.int64).min
    else:
        keys = x.to(torch.int64 if x.dtype in (torch.int64, torch.uint32) else torch.int32)
    return ~keys if descending else keys


def _padded(keys: torch.Tensor, length: int) -> torch.Tensor:
    """Behind them the largest keys, up to this length."""
    more = length - keys.shape[-1]
    return torch.cat([keys, keys.new_full((*keys.shape[:-1], more), torch.iinfo(keys.dtype).max)], -1) if more else keys


def _sorted(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys in order along the last dimension, and where each was; equal ones stay in their order."""
    extent = keys.shape[-1]
    levels = max(0, math.ceil(math.log2(extent / RUN))) if extent else 0
    length = -(-extent // (1 << levels))
    runs = _padded(keys, length << levels).reshape(*keys.shape[:-1], 1 << levels, length)
    runs, at = _aten.sort.stable(runs, stable=True, dim=-1, descending=False)
    at = at + length * torch.arange(1 << levels, device=keys.device)[:, None]
    for level in range(levels):
        count, length_now = 1 << (levels - level - 1), length << level
        pairs = runs.reshape(*keys.shape[:-1], count, 2, length_now)
        first, second = pairs[..., 0, :].contiguous(), pairs[..., 1, :].contiguous()
        own = torch.arange(length_now, device=keys.device)
        # Of equal ones those of the first run come first.
        places = torch.stack(
            [own + torch.searchsorted(second, first, right=False), own + torch.searchsorted(first, second, right=True)], -2
        ).reshape(*keys.shape[:-1], count, 2 * length_now)
        # Only small whole numbers are scattered by a kernel of Triton's: who comes to each place.
        own = torch.arange(2 * length_now, dtype=torch.int32, device=keys.device).expand(places.shape)
        comes = torch.zeros_like(own).scatter(-1, places, own).to(torch.int64)
        runs, at = (each.reshape(places.shape).gather(-1, comes) for each in (pairs, at))
    return runs.flatten(-2)[..., :extent], at.flatten(-2)[..., :extent]


def _largest(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Where the ``count`` first ones in order are, in order."""
    extent = keys.shape[-1]
    parts = -(-extent // RUN)
    if extent <= RUN or parts * count * 2 > extent:
        return _sorted(keys)[1][..., :count]
    some = _padded(keys, parts * RUN).reshape(*keys.shape[:-1], parts, RUN)
    best, at = _aten.sort.stable(some, stable=True, dim=-1, descending=False)
    at = (at + RUN * torch.arange(parts, device=keys.device)[:, None])[..., :count].flatten(-2)
    again = _largest(best[..., :count].flatten(-2), count)
    return at.gather(-1, again)


def _ordered(x: torch.Tensor, dim: int, count: int | None, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Values in order along a dimension, all or the first ones, and where they were."""
    moved = x.movedim(dim, -1)
    keys = _keys(moved, descending)
    at = _sorted(keys)[1] if count is None else _largest(keys, count)
    return moved.gather(-1, at).movedim(-1, dim), at.movedim(-1, dim)


@_of(_aten.sort.default, _aten.sort.stable)
def _sort(x: torch.Tensor, *rest: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    dim = rest[0] if rest else dim
    descending = rest[1] if len(rest) > 1 else descending
    if x.dim() == 0 or not isinstance(x.shape[dim], int) or x.shape[dim] <= RUN:
        # Of these Inductor makes a kernel itself.
        return NotImplemented
    return _ordered(x, dim, None, descending)


@_of(_aten.topk.default)
def _topk(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    _extent(x, dim, "aten.topk.default")
    return _ordered(x, dim, k, largest)


@_of(_aten.kthvalue.default)
def _kthvalue(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    _extent(x, dim, "aten.kthvalue.default")
    values, at = _ordered(x, dim, k, descending=False)
    found = values.narrow(dim, k - 1, 1), at.narrow(dim, k - 1, 1)
    return found if keepdim else tuple(each.squeeze(dim) for each in found)


@_of(_aten.median.dim)
def _median(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    values, at = _kthvalue(x, (_extent(x, dim, "aten.median.dim") + 1) // 2, dim, True)
    if x.dtype.is_floating_point:
        unknown = torch.isnan(x)
        at = torch.where(unknown.any(dim, True), unknown.to(torch.int32).argmax(dim, True), at)
        values = x.gather(dim, at)
    return (values, at) if keepdim else (values.squeeze(dim), at.squeeze(dim))


@_of(_aten.median.default)
def _median_of_all(x: torch.Tensor) -> Any:
    return _median(x.reshape(-1), 0)[0]


# Counting and scattering


@_of(_aten.histc.default)
def _histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    x = x.reshape(-1)
    low: Any = torch.full((), min, dtype=x.dtype, device=x.device)
    high: Any = torch.full((), max, dtype=x.dtype, device=x.device)
    if min == max:
        if x.numel() > 0:
            low, high = x.amin(), x.amax()
        low, high = torch.where(low == high, low - 1, low), torch.where(low == high, high + 1, high)
    inside = (x >= low) & (x <= high)
    at = ((x - low) * bins / (high - low)).to(torch.int64).clamp(0, bins - 1)
    # Floats stop counting where 1 is below their precision.
    return torch.zeros(bins, dtype=torch.int32, device=x.device).index_add(0, at, inside.to(torch.int32)).to(x.dtype)


_NEUTRAL = {"prod": 1.0, "amax": -math.inf, "amin": math.inf}


def _reduced(parts: torch.Tensor, kind: str, dim: int) -> torch.Tensor:
    return {"prod": torch.prod, "amax": torch.amax, "amin": torch.amin}[kind](parts, dim)


def _neutral(kind: str, dtype: torch.dtype) -> Any:
    if dtype.is_floating_point or kind == "prod":
        return _NEUTRAL[kind]
    if dtype == torch.bool:
        return kind == "amin"
    return torch.iinfo(dtype).min if kind == "amax" else torch.iinfo(dtype).max


def _summed_in(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums of many are kept: half-precision ones would be rounded at each addition."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _check_asked(what: str, asked: Any) -> None:
    if isinstance(asked, int) and asked > _MOST_ASKED:
        raise Unsupported(what, f"it would ask {asked} times whether an element belongs")


@_of(_aten.scatter_reduce.two)
def _scatter_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    if reduce == "sum" and include_self:
        return NotImplemented
    if x.dim() == 0:
        x, index, src = x[None], index.reshape(1), src.reshape(1)
        return _scatter_reduce(x, 0, index, src, reduce, include_self=include_self)[0]
    src = src[tuple(slice(0, extent) for extent in index.shape)]
    # Counted in 32 bits whatever is scattered: shorter types would run out of numbers.
    ones = torch.ones_like(src, dtype=torch.int32)
    count = torch.zeros_like(x, dtype=torch.int32).scatter_add(dim, index, ones)
    touched = count > 0
    if reduce in ("sum", "mean"):
        begin = x if include_self else torch.where(touched, torch.zeros_like(x), x)
        wide = _summed_in(x.dtype)
        total = begin.to(wide).scatter_add(dim, index, src.to(wide))
        if reduce == "mean":
            count = (count + 1 if include_self else count).clamp(min=1)
            total = total / count if x.dtype.is_floating_point else torch.div(total, count, rounding_mode="floor")
        return total.to(x.dtype)
    _check_asked(f"aten.scatter_reduce.two, {reduce}", index.numel() * x.shape[dim])
    # Every place asks every element of its line whether it belongs there: nothing of that is kept in memory.
    moved, lines, given = x.movedim(dim, -1), index.movedim(dim, -1), src.movedim(dim, -1)
    places = torch.arange(moved.shape[-1], device=x.device)
    neutral = torch.full((), _neutral(reduce, x.dtype), dtype=x.dtype, device=x.device)
    found = _reduced(torch.where(lines[..., :, None] == places, given[..., :, None], neutral), reduce, -2).to(x.dtype)
    fits = tuple(slice(0, extent) for extent in found.shape)
    own = moved[fits]
    reached = touched.movedim(dim, -1)[fits]
    if include_self:
        with_own = {"prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum}[reduce](own, found)
    else:
        with_own = found
    result = torch.where(reached, with_own, own)
    if found.shape != moved.shape:
        result = _into_corner(moved, result)
    return result.movedim(-1, dim)


def _into_corner(whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A tensor whose first elements along each dimension are others."""
    padding = [n for w, p in zip(reversed(whole.shape), reversed(part.shape), strict=True) for n in (0, w - p)]
    inside = torch.nn.functional.pad(torch.ones_like(part, dtype=torch.bool), padding)
    return torch.where(inside, torch.nn.functional.pad(part, padding), whole)


@_of(_aten.index_reduce.default)
def _index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    shape = [1] * source.dim()
    shape[dim] = -1
    lines = index.reshape(shape).expand(source.shape)
    return _aten.scatter_reduce.two(x, dim, lines, source, reduce, include_self=include_self)


@_of(_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default)
def _embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    bags = offsets.shape[0] - int(include_last_offset)
    begins = offsets[:bags].to(torch.int64)
    places = torch.arange(indices.shape[0], device=indices.device)
    of = torch.searchsorted(begins, places, right=True) - 1
    counted = torch.ones_like(indices, dtype=torch.bool)
    if padding_idx >= 0:
        counted = indices != padding_idx
    counts = (
        torch.zeros(bags, dtype=torch.int32, device=weight.device).index_add(0, of, counted.to(torch.int32)).to(torch.int64)
    )
    rows = weight[indices]
    if mode == 2:
        _check_asked("aten._embedding_bag.default, max", rows.numel() * bags)
        belongs = (of[:, None] == torch.arange(bags, device=of.device)) & counted[:, None]
        lowest = torch.full((), _neutral("amax", rows.dtype), dtype=rows.dtype, device=rows.device)
        found = torch.where(belongs[:, :, None], rows[:, None, :], lowest).amax(0)
        found = torch.where(counts[:, None] > 0, found, torch.zeros_like(found))
    else:
        rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
        rows = torch.where(counted[:, None], rows, torch.zeros_like(rows)).to(_summed_in(weight.dtype))
        found = torch.zeros(bags, weight.shape[1], dtype=rows.dtype, device=weight.device).index_add(0, of, rows)
        if mode == 1:
            found = found / counts.clamp(min=1)[:, None]
        found = found.to(weight.dtype)
    return found, of, counts, torch.zeros(bags, dtype=torch.int64, device=weight.device)


# Others


@_of(_aten._cdist_forward.default)
def _cdist(x: torch.Tensor, y: torch.Tensor, p: float, compute_mode: int | None = None) -> Any:
    apart = (x[..., :, None, :] - y[..., None, :, :]).abs()
    if p == 0:
        return (apart != 0).to(x.dtype).sum(-1)
    if p == 1:
        return apart.sum(-1)
    if p == 2:
        return (apart * apart).sum(-1).sqrt()
    return apart.amax(-1) if p == math.inf else apart.pow(p).sum(-1).pow(1 / p)


# Windows over one place whose values are added one by one.
_MOST_WINDOWS = 64


@_of(_aten.unfold_backward.default)
def _unfold_backward(grad: torch.Tensor, input_sizes: Any, dim: int, size: int, step: int) -> Any:
    """Adds up what windows have at each place, of all windows that are over it: what ``istft`` does with its frames."""
    over = -(-size // step)
    if over > _MOST_WINDOWS or not input_sizes:
        return NotImplemented
    windows = grad.movedim(dim, -2)
    places = torch.arange(input_sizes[dim], device=grad.device)
    total: Any = 0
    for before in range(over):
        window = places // step - before
        at = places - window * step
        there = (window >= 0) & (window < windows.shape[-2]) & (at < size)
        values = windows[..., window.clamp(0, windows.shape[-2] - 1), at.clamp(max=size - 1)]
        total = total + torch.where(there, values, torch.zeros_like(values))
    return total.movedim(-1, dim)


@_of(_aten._thnn_fused_gru_cell.default)
def _gru_cell(by_input: Any, by_state: Any, state: Any, input_bias: Any = None, state_bias: Any = None) -> Any:
    by_input = by_input if input_bias is None else by_input + input_bias
    by_state = by_state if state_bias is None else by_state + state_bias
    (r, z, n), (hr, hz, hn) = by_input.chunk(3, 1), by_state.chunk(3, 1)
    reset, update = (r + hr).sigmoid(), (z + hz).sigmoid()
    new = (n + reset * hn).tanh()
    return (state - new) * update + new, by_input.new_empty((by_input.shape[0], 5 * state.shape[1]))


@_of(_aten._thnn_fused_lstm_cell.default)
def _lstm_cell(by_input: Any, by_state: Any, state: Any, input_bias: Any = None, state_bias: Any = None) -> Any:
    gates = by_input + by_state
    gates = gates if input_bias is None else gates + input_bias
    gates = gates if state_bias is None else gates + state_bias
    i, f, g, o = gates.chunk(4, 1)
    kept = f.sigmoid() * state + i.sigmoid() * g.tanh()
    return o.sigmoid() * kept.tanh(), kept, torch.empty_like(gates)


def _resampling(extent: int, wanted: int, scale: float | None, align: bool, cubic: bool, like: torch.Tensor) -> torch.Tensor:
    """What each pixel counts in each pixel of a resized line: a matrix."""
    if align:
        step = (extent - 1) / (wanted - 1) if wanted > 1 else 0.0
    else:
        step = 1 / scale if scale else extent / wanted
    wide, reach = max(step, 1.0), 2.0 if cubic else 1.0
    double = {"dtype": torch.float64, "device": like.device}
    centre = step * (torch.arange(wanted, **double) + 0.5)[:, None]
    at = torch.arange(extent, **double)[None, :]
    first = (centre - reach * wide + 0.5).to(torch.int64).clamp(min=0)
    last = (centre + reach * wide + 0.5).to(torch.int64).clamp(max=extent)
    away = ((at - centre + 0.5) / wide).abs()
    if cubic:
        near = ((1.5 * away - 2.5) * away) * away + 1
        far = ((-0.5 * away + 2.5) * away - 4) * away + 2
        counts = torch.where(away < 1, near, torch.where(away < 2, far, torch.zeros_like(away)))
    else:
        counts = (1 - away).clamp(min=0)
    counts = torch.where((at >= first) & (at < last), counts, torch.zeros_like(counts))
    return (counts / counts.sum(1, keepdim=True)).to(like.dtype)


def _antialiased(x: torch.Tensor, size: Any, align: bool, cubic: bool, scale_h: Any, scale_w: Any) -> Any:
    if not x.dtype.is_floating_point:
        # What a pixel counts is a fraction, which these types do not have.
        return NotImplemented
    down = _resampling(x.shape[-2], size[0], scale_h, align, cubic, x)
    across = _resampling(x.shape[-1], size[1], scale_w, align, cubic, x)
    return down @ (x @ across.t())


@_of(_aten._upsample_bilinear2d_aa.default)
def _bilinear(x: torch.Tensor, size: Any, align: bool, scale_h: Any = None, scale_w: Any = None) -> Any:
    return _antialiased(x, size, align, False, scale_h, scale_w)


@_of(_aten._upsample_bicubic2d_aa.default)
def _bicubic(x: torch.Tensor, size: Any, align: bool, scale_h: Any = None, scale_w: Any = None) -> Any:
    return _antialiased(x, size, align, True, scale_h, scale_w)
