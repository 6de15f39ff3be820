"""What models that find objects do with boxes: features of each box, and the best ones of those that overlap.

``torchvision.ops.roi_align`` becomes a decomposition. Its samples are kept nowhere: the kernel that reads them averages them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .errors import Unsupported


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Those of torchvision's operators, where a model brought them: nothing here imports torchvision."""
    found = getattr(torch.ops.torchvision, "roi_align", None)
    return {} if found is None else {found.default: roi_align}


def roi_align(
    x: torch.Tensor, boxes: torch.Tensor, scale: float, height: int, width: int, sampling_ratio: int, aligned: bool
) -> torch.Tensor:
    """Means of samples in each of ``height`` by ``width`` parts of each box, as torchvision's kernels take them."""
    if sampling_ratio <= 0:
        raise Unsupported(
            f"torchvision.ops.roi_align with sampling_ratio={sampling_ratio}",
            "it takes more samples of larger boxes, and the steps of a function do not depend on data: set sampling_ratio, to 2 "
            "as torchvision's own models do",
        )
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    image, *edges = boxes.to(wide).unbind(1)
    left, top, right, bottom = (edge * scale - (0.5 if aligned else 0.0) for edge in edges)
    least = None if aligned else 1.0
    rows = _samples(top, bottom, least, height, sampling_ratio, x.shape[2])
    columns = _samples(left, right, least, width, sampling_ratio, x.shape[3])
    # box, channel, part down, sample down, part across, sample across
    at = image.to(torch.int64)[:, None, None, None, None, None]
    channels = torch.arange(x.shape[1], device=x.device)[None, :, None, None, None, None]
    found: Any = 0
    for down, by in rows:
        for across, times in columns:
            values = x[at, channels, down[:, None, :, :, None, None], across[:, None, None, None, :, :]].to(wide)
            found = found + values * by[:, None, :, :, None, None] * times[:, None, None, None, :, :]
    return found.mean((3, 5)).to(x.dtype)


def _samples(
    first: torch.Tensor, last: torch.Tensor, least: float | None, parts: int, ratio: int, extent: Any
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The two pixels that each sample along a dimension lies between, and what each counts: box by part by sample."""
    size = last - first if least is None else (last - first).clamp(min=least)
    part = torch.arange(parts, dtype=first.dtype, device=first.device)[:, None]
    sample = (torch.arange(ratio, dtype=first.dtype, device=first.device) + 0.5) / ratio
    place = first[:, None, None] + (part + sample) * (size / parts)[:, None, None]
    # One pixel beyond an edge counts as the edge, what is farther out as nothing.
    inside = (place >= -1) & (place <= extent)
    place = place.clamp(min=0)
    before = place.to(torch.int64).clamp(max=extent - 1)
    after = (before + 1).clamp(max=extent - 1)
    beyond = torch.where(after == before, torch.zeros_like(place), place - before)
    nothing = torch.zeros_like(place)
    return [(before, torch.where(inside, 1 - beyond, nothing)), (after, torch.where(inside, beyond, nothing))]
