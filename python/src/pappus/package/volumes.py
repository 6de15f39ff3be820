"""Convolutions of three dimensions that have no template, as one of two: what lies in depth becomes pictures and channels.

Each place in depth is a picture of its own, whose channels are those of all the places that a kernel reaches from there: groups
stay beside each other, as many times as wide. Along depth a transposed one is an ordinary one, of its input with zeros between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """``aten.convolution``; those that Inductor's templates or :mod:`.convolutions` lower stay."""
    if weight.dim() != 5 or (not transposed and max(dilation) == 1):
        return NotImplemented
    if x.dim() == 4:
        return convolution(x[None], weight, bias, stride, padding, dilation, transposed, output_padding, groups)[0]
    stride, padding, dilation, more = (list(given) * (3 // len(given)) for given in (stride, padding, dilation, output_padding))
    reach = dilation[0] * (weight.shape[2] - 1)
    step = stride[0]
    if transposed:
        if step > 1:
            between = torch.zeros_like(x)[:, :, :, None].expand(-1, -1, -1, step - 1, -1, -1)
            x = torch.cat([x[:, :, :, None], between], 3).flatten(2, 3)[:, :, : step * (x.shape[2] - 1) + 1]
        before = reach - padding[0]
        x, step = F.pad(x, (0, 0, 0, 0, before, before + more[0])), 1
        weight = weight.flip(2)
    else:
        x = F.pad(x, (0, 0, 0, 0, padding[0], padding[0]))
    # picture, channel, depth, row, column, reached from there
    reached = x.unfold(2, reach + 1, step)[..., :: dilation[0]]
    pictures = reached.permute(0, 2, 1, 5, 3, 4).flatten(2, 3)
    kernel = weight.permute(0, 2, 1, 3, 4).flatten(0, 1) if transposed else weight.flatten(1, 2)
    result = torch.ops.aten.convolution.default(
        pictures.flatten(0, 1), kernel, bias, stride[1:], padding[1:], dilation[1:], transposed, more[1:], groups
    )
    return result.unflatten(0, (x.shape[0], pictures.shape[1])).transpose(1, 2)
