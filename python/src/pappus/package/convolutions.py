"""Convolutions that PyTorch has no good kernel for, or none: which of ours lowers which, and in which configurations.

Inductor's template serves dense ones. Those of one channel each, in groups, dilated or transposed get one of
:mod:`.convolution_kernels`; those of one dimension are of two, of which one is 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.kernel import conv as inductors
from torch._inductor.select_algorithm import autotune_select_algorithm
from torch._inductor.virtualized import V

from . import convolution_kernels as kernels

_aten = torch.ops.aten
# A kernel this long is one of many rows rather than of many columns: rows are gone over in a loop, columns are written out.
_MOST_COLUMNS = 31
# With fewer, a row of pixels is what lies side by side in memory.
_FEW_CHANNELS = 8
# Values that a warp multiplies at once at least, along each side.
_LEAST_TILE = 16


class _Numbers(NamedTuple):
    """What a convolution is told beside its arrays, in the order of ``aten.convolution``; sequences have one per dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int


@contextlib.contextmanager
def lowered() -> Iterator[None]:
    """Has Inductor lower convolutions by :func:`convolution` meanwhile."""
    with mock.patch.dict(lowering.lowerings, {_aten.convolution.default: convolution}):
        yield


def convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """``aten.convolution``, in Inductor's terms."""
    call = lowering.lowerings
    whole = V.graph.sizevars.guard_int_seq
    first, per_group, *kernel = whole(weight.get_size())
    depthwise = per_group == 1 and (not transposed or groups == first)
    if len(kernel) < 3:
        _lay(weight, [*range(2, 2 + len(kernel)), 1, 0] if depthwise else [0, *range(2, 2 + len(kernel)), 1])
    if len(x.get_size()) == len(kernel) + 1:
        # No batch.
        x = call[_aten.unsqueeze](x, 0)
        return call[_aten.squeeze](
            convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups), 0
        )
    numbers = [_one_each(whole(given), len(kernel)) for given in (stride, padding, dilation, output_padding)]
    if len(kernel) == 1:
        at = 3 if kernel[0] > _MOST_COLUMNS else 2
        s, p, d, more = (_with_one(number, at, neutral) for number, neutral in zip(numbers, (1, 0, 1, 0), strict=True))
        x, weight = call[_aten.unsqueeze](x, at), call[_aten.unsqueeze](weight, at)
        return call[_aten.squeeze](convolution(x, weight, bias, s, p, d, transposed, more, groups), at)
    s, p, d, more = numbers
    told = _Numbers(s, p, d, transposed, more, groups)
    dense = groups == 1 and per_group > 1
    # Ours sum in 32 bits: of what has 64, PyTorch's own kernel is asked for, which is refused.
    wide = x.get_dtype() == torch.float64
    if len(kernel) != 2 or wide or (dense and not transposed and set(told.dilation) == {1}):
        return inductors.convolution(x, weight, bias, *told)
    result = _ours(x, weight, told, depthwise)
    if bias is None:
        return result
    return call[_aten.add.Tensor](result, call[_aten.view.default](bias, [bias.get_size()[0], 1, 1]))


def _lay(weight: Any, order: Sequence[int]) -> None:
    """Has a weight that convolutions alone read lie in this order of dimensions: the package has it so.

    Otherwise a kernel would turn it in every call.
    """
    buffer = getattr(getattr(weight, "data", None), "data", None)
    users = [node for given in V.graph.current_node.all_input_nodes[1:2] for node in given.users]
    if not isinstance(buffer, ir.ConstantBuffer) or any(node.target is not _aten.convolution.default for node in users):
        return
    value, layout = V.graph.constants[buffer.get_name()], buffer.get_layout()
    if not value.is_contiguous() or not isinstance(layout, ir.FixedLayout) or layout.offset != 0:
        return
    back = sorted(range(len(order)), key=lambda at: order[at])
    laid = value.permute(list(order)).contiguous().permute(back)
    V.graph.constants[buffer.get_name()] = laid
    strides = [sympy.Integer(stride) for stride in laid.stride()]
    buffer.layout = ir.FixedLayout(layout.device, layout.dtype, layout.size, strides)


def _one_each(given: Sequence[int], dimensions: int) -> tuple[int, ...]:
    """Numbers for all dimensions, where one stands for each of them."""
    return tuple(given) * dimensions if len(given) == 1 else tuple(given)


def _with_one(numbers: tuple[int, ...], at: int, neutral: int) -> tuple[int, ...]:
    """Numbers of one dimension as those of two, of which the other one has this."""
    return (neutral, *numbers) if at == 2 else (*numbers, neutral)


def _ours(x: Any, weight: Any, told: _Numbers, depthwise: bool) -> Any:
    x.realize()
    weight.realize()
    stride, padding, dilation, transposed, _, groups = told
    first, per_group, *kernel = V.graph.sizevars.guard_int_seq(weight.get_size())
    channels = per_group * groups if transposed else first
    innermost = channels >= _FEW_CHANNELS
    V.graph.num_channels_last_conv += 1
    x = ir.ExternKernel.require_channels_last(x) if innermost else ir.ExternKernel.require_contiguous(x)
    # In whatever order the weight lies: its strides are numbers in the kernel.
    weight = ir.ExternKernel.realize_input(weight)
    weight.freeze_layout()
    size = _result_size(x, weight, told)
    order = [0, 2, 3, 1] if innermost else [0, 1, 2, 3]
    strides: list[Any] = [sympy.Integer(1)] * 4
    for at in reversed(range(3)):
        strides[order[at]] = strides[order[at + 1]] * size[order[at + 1]]
    layout = ir.FixedLayout(x.get_device_or_error(), x.get_dtype(), size, strides)
    shared = {
        "KERNEL_H": kernel[0],
        "KERNEL_W": kernel[1],
        "STRIDE_H": stride[0],
        "STRIDE_W": stride[1],
        "PADDING_H": padding[0],
        "PADDING_W": padding[1],
        "DILATION_H": dilation[0],
        "DILATION_W": dilation[1],
        "TRANSPOSED": transposed,
    }
    choices: list[Any] = []
    if depthwise:
        name, template = "depthwise_convolution", kernels.depthwise
        shared |= {"MULTIPLIER": 1 if transposed else first // groups, "CHANNELS_INNERMOST": innermost}
        configurations = _depthwise_configurations(channels, transposed, 16 // x.get_dtype().itemsize if innermost else 4)
    else:
        name, template = "grouped_convolution", kernels.grouped
        group_in, group_out = (first // groups, per_group) if transposed else (per_group, first // groups)
        # Phases: places of a transposed convolution that the same taps reach.
        phases = [s if transposed and d == 1 else 1 for s, d in zip(stride, dilation, strict=True)]
        shared |= {"GROUPS": groups, "GROUP_IN": group_in, "GROUP_OUT": group_out}
        shared |= {"PHASES_H": phases[0], "PHASES_W": phases[1]}
        shared["ALLOW_TF32"] = torch.backends.cudnn.fp32_precision == "tf32"
        configurations = _grouped_configurations(groups, group_in, group_out)
    for configuration in configurations:
        template.maybe_append_choice(choices, input_nodes=(x, weight), layout=layout, **shared, **configuration)
    found = autotune_select_algorithm(name, choices, [x, weight], layout)
    # Newer releases return what was chosen beside it.
    return found[0] if isinstance(found, tuple) else found


def _result_size(x: Any, weight: Any, told: _Numbers) -> list[Any]:
    stride, padding, dilation, transposed, output_padding, groups = told
    first, per_group, *kernel = V.graph.sizevars.guard_int_seq(weight.get_size())
    batch, _, *extents = x.get_size()
    found: list[Any] = [batch, per_group * groups if transposed else first]
    for extent, k, s, p, d, more in zip(extents, kernel, stride, padding, dilation, output_padding, strict=True):
        reach = d * (k - 1) + 1
        found.append((extent - 1) * s - 2 * p + reach + more if transposed else (extent + 2 * p - reach) // s + 1)
    return [sympy.sympify(V.graph.sizevars.simplify(size)) for size in found]


def _depthwise_configurations(channels: int, transposed: bool, together: int) -> Iterator[dict[str, int]]:
    """From many threads that do little to few that share much; ``together`` are values that a thread loads at once."""
    for columns in (1,) if transposed else (1, 2, 4):
        for wide in sorted({min(1 << (channels - 1).bit_length(), most) for most in (16, 32, 64)}):
            for values, warps in ((together, 2), (together, 4), (2 * together, 4)):
                runs = max(1, values * 32 * warps // wide)
                yield {"BLOCK_R": runs, "BLOCK_C": wide, "COLUMNS": columns, "num_warps": warps, "num_stages": 1}


def _grouped_configurations(groups: int, group_in: int, group_out: int) -> Iterator[dict[str, int]]:
    """Tiles as wide as a group, or as several groups that are narrow."""
    packed = max(1, min(groups, 32 // group_out)) if group_out < 32 else 1
    if packed > 1 and packed * group_in > 128:
        packed = 1
    width = _power(packed * group_out)
    depth = _power(packed * group_in)
    for block_n in sorted({min(width, most) for most in (32, 64, 128)}):
        if packed > 1 and block_n < width:
            continue
        for block_k in sorted({min(depth, most) for most in (32, 64)}):
            for block_m, warps in ((32, 2), (64, 4), (128, 4), (128, 8)):
                for stages in (2, 4):
                    yield {
                        "BLOCK_M": block_m,
                        "BLOCK_N": block_n,
                        "BLOCK_K": block_k,
                        "PACKED": packed,
                        "num_warps": warps,
                        "num_stages": stages,
                    }


def _power(number: int) -> int:
    """The least power of two that is no less, of those that a tile may have as a side."""
    return max(_LEAST_TILE, 1 << (number - 1).bit_length())
