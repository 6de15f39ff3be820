"""Values of pictures and volumes at places that are computed (``grid_sample``): sums of the neighbours of each.

PyTorch asks the device for cuDNN first, and has a form in other operators for pictures alone.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

_aten = torch.ops.aten


def rewrite(program: Any) -> None:
    """Names, in an exported program, the operator without cuDNN."""
    for node in program.graph.find_nodes(op="call_function", target=_aten.grid_sampler.default):
        is_volume = node.args[0].meta["val"].dim() == 5
        node.target = _aten.grid_sampler_3d.default if is_volume else _aten.grid_sampler_2d.default
    program.graph_module.recompile()


def volume(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align: bool) -> Any:
    """Values of a volume at places: of the eight neighbours of each, or of the nearest one."""

    def reflected(at: torch.Tensor, low: float, high: float) -> torch.Tensor:
        if high <= low:
            return torch.zeros_like(at)
        turns = ((at - low).abs() / (high - low)).floor()
        rest = (at - low).abs() - turns * (high - low)
        return torch.where(turns % 2 == 0, rest + low, high - rest)

    def place(at: torch.Tensor, extent: int) -> torch.Tensor:
        at = (at + 1) / 2 * (extent - 1) if align else ((at + 1) * extent - 1) / 2
        if padding == 2:
            at = reflected(at, 0.0, extent - 1.0) if align else reflected(at, -0.5, extent - 0.5)
        return at if padding == 0 else at.clamp(0, extent - 1)

    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    extents = x.shape[2:]
    # The last of a place's three numbers is that of the first dimension.
    places = [place(grid[..., 2 - axis].to(wide), extent) for axis, extent in enumerate(extents)]
    pictures = torch.arange(x.shape[0], device=x.device).reshape(-1, 1, 1, 1)

    def part(steps: tuple[int, ...]) -> torch.Tensor:
        corners = [at.round() if mode == 1 else at.floor() + step for at, step in zip(places, steps, strict=True)]
        weight = torch.ones_like(places[0])
        for corner, at, extent in zip(corners, places, extents, strict=True):
            near = torch.ones_like(at) if mode == 1 else 1 - (at - corner).abs()
            weight = torch.where((corner >= 0) & (corner < extent), weight * near, torch.zeros_like(weight))
        inside = [corner.clamp(0, extent - 1).to(torch.int64) for corner, extent in zip(corners, extents, strict=True)]
        where = (pictures, *inside)
        values = x.movedim(1, -1)[where]
        return values.to(wide) * weight[..., None]

    total = part((0, 0, 0))
    for steps in itertools.product((0, 1), repeat=3) if mode == 0 else ():
        total = total + part(steps) if any(steps) else total
    return total.movedim(-1, 1).to(x.dtype)


TABLE = {_aten.grid_sampler_3d.default: volume}
