"""Estimates of tiles, beside what an H200 was measured to be fastest with."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from pappus.package import candidates, choose, lowering, targets

(TARGET,) = targets.parse("sm_90")


def product(m: int, n: int, k: int, dtype: torch.dtype, tile: tuple[int, int, int], warps: int, stages: int) -> Any:
    """A matrix product of these sizes, with a tile configuration."""
    named = zip("MNK", tile, strict=True)
    return SimpleNamespace(
        name="triton_mm_1",
        description=", ".join(f"BLOCK_{axis}={size}" for axis, size in named) + f", num_warps={warps}, num_stages={stages}",
        layout=SimpleNamespace(size=[m, n], dtype=dtype),
        input_nodes=[SimpleNamespace(get_size=lambda: [m, k])],
        bmreq=None,
    )


def estimate(*of: Any) -> float:
    return choose.estimate(product(*of), TARGET, TARGET.shared_bytes)


def test_halves_take_large_tiles_and_single_rows_small_ones() -> None:
    half = torch.float16
    # A convolution of 512 channels on 8 pictures of 7 by 7, as a product.
    assert estimate(392, 512, 4608, half, (64, 128, 64), 4, 4) < estimate(392, 512, 4608, half, (64, 64, 32), 4, 2)
    assert estimate(8, 1000, 512, half, (16, 32, 128), 2, 5) < estimate(8, 1000, 512, half, (64, 128, 64), 4, 4)
    # Tensor cores' widest instructions take 64 rows from four warps.
    assert estimate(4096, 4096, 4096, half, (64, 128, 64), 4, 3) < estimate(4096, 4096, 4096, half, (32, 256, 64), 4, 3)


def test_what_does_not_fit_is_not_chosen() -> None:
    assert estimate(512, 512, 512, torch.float32, (128, 128, 128), 8, 4) == math.inf
    assert estimate(512, 512, 512, torch.float32, (128, 128, 32), 8, 4) < math.inf


def test_an_operation_that_was_measured_has_a_configuration_of_that_name(monkeypatch: Any) -> None:
    """Otherwise the table that comes with Pappus says nothing with this release of PyTorch."""
    found = []
    pick = candidates.Choices.pick

    def noted(self: Any, choices: list[Any]) -> list[Any]:
        (picked,) = pick(self, choices)
        names = [choice.description for choice in choices if isinstance(choice, candidates.Deferred)]
        found.append((self.shipped.fastest(candidates.key_of(picked, self.float32)), names))
        return [picked]

    monkeypatch.setattr(candidates.Choices, "pick", noted)
    # What ConvNeXt ends with.
    lowering.lower(nn.Linear(768, 1000).eval().half(), (torch.randn(8, 768, dtype=torch.float16),))
    ((fastest, names),) = found
    assert fastest is not None
    assert fastest in names
