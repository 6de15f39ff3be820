"""What models that find objects do with boxes: features of each box, and the best ones of those that overlap.

``torchvision.ops.roi_align`` becomes a decomposition. Its samples are kept nowhere: the kernel that reads them averages them.
:func:`nms` stands in the place of torchvision's, the size of whose result depends on data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from .errors import PackageError, Unsupported

# Each box that is chosen takes a launch, and its operators are traced one by one.
_MOST_CHOSEN = 512


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
            "it takes more samples of larger boxes, and the steps of a function do not depend on data: set sampling_ratio, to "
            "2 as torchvision's own models do",
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


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Places of the boxes that are kept, and how many: :func:`pappus.package.nms` says it in full.

    Greedy choice has an order that nothing shortens: a box is out only if one that is kept overlaps it. So there is a step for
    each box that is chosen, which finds the first one that is left, and strikes out what overlaps it.
    """
    if not 1 <= most <= _MOST_CHOSEN:
        raise PackageError(f"most is {most}: nms gives 1 to {_MOST_CHOSEN} boxes, in a step each")
    count = boxes.shape[-2]
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    wide = boxes if boxes.dtype == torch.float64 else boxes.to(torch.float32)
    edges = wide.gather(-2, order[..., None].expand(wide.shape)).unbind(-1)
    threshold = iou_threshold if wide.dtype == torch.float64 else _rounded_down(iou_threshold)
    places = torch.arange(count, device=boxes.device)
    # True where a box, should it be kept, strikes out one behind it.
    strikes = (_overlaps(edges) > threshold) | (places[:, None] >= places)
    left = torch.ones_like(scores, dtype=torch.bool)
    chosen = []
    for _ in range(most):
        first = torch.where(left, places, count).amin(-1, keepdim=True)
        chosen.append(first)
        at = first.clamp(max=count - 1)[..., None]
        left = left & ~strikes.gather(-2, at.expand(*at.shape[:-1], count))[..., 0, :]
    found = torch.cat(chosen, -1)
    kept = found < count
    return torch.where(kept, order.gather(-1, found.clamp(max=count - 1)), -1), kept.sum(-1)


def _overlaps(edges: Sequence[torch.Tensor]) -> torch.Tensor:
    """Intersection over union of each box with each; not a number where both are empty."""
    area = (edges[2] - edges[0]) * (edges[3] - edges[1])
    low = [torch.maximum(edge[..., :, None], edge[..., None, :]) for edge in edges[:2]]
    high = [torch.minimum(edge[..., :, None], edge[..., None, :]) for edge in edges[2:]]
    both = (high[0] - low[0]).clamp(min=0) * (high[1] - low[1]).clamp(min=0)
    return both / (area[..., :, None] + area[..., None, :] - both)


def _rounded_down(number: float) -> float:
    """The largest number of 32 bits that is no larger: exactly what is larger than ``number`` is larger than this one, too."""
    rounded = numpy.float32(number)
    return float(rounded if float(rounded) <= number else numpy.nextafter(rounded, numpy.float32("-inf")))
