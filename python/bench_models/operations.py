"""Single convolutions of the kinds that have kernels of ours, in sizes that networks have: for :mod:`.launches` alone."""

from __future__ import annotations

import torch
from torch import nn

from .cases import Case


def _depthwise(channels: int, extent: int, kernel: int, stride: int, dtype: torch.dtype) -> Case:
    """One channel each, on eight pictures."""
    short = {torch.float32: "fp32", torch.float16: "fp16"}[dtype]

    def network() -> nn.Module:
        return nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels, bias=False)

    name = f"depthwise-{kernel}-by-{stride}-{channels}-of-{extent}-{short}"
    return Case(name, network, (8, channels, extent, extent), dtype)


OPERATIONS = (
    _depthwise(144, 56, 3, 1, torch.float16),
    _depthwise(72, 56, 3, 2, torch.float32),
    _depthwise(240, 14, 5, 1, torch.float32),
    _depthwise(576, 7, 5, 1, torch.float32),
    _depthwise(96, 56, 7, 1, torch.float16),
    _depthwise(384, 14, 7, 1, torch.float16),
    Case(
        "grouped-32-128-of-56-fp16",
        lambda: nn.Conv2d(128, 128, 3, 1, 1, groups=32, bias=False),
        (8, 128, 56, 56),
        torch.float16,
    ),
    Case("transposed-64-of-32-fp16", lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False), (8, 64, 32, 32), torch.float16),
    Case(
        "dilated-256-of-1024-fp16",
        lambda: nn.Conv1d(256, 256, 3, padding=3, dilation=3, bias=False),
        (8, 256, 1024),
        torch.float16,
    ),
)
