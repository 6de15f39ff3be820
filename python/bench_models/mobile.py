"""Networks of depthwise convolutions, layer by layer as published, written for any release of PyTorch.

MobileNet-v3 small (Howard et al. 2019), EfficientNet-B0 (Tan and Le 2019), ConvNeXt tiny (Liu et al. 2022), and ResNeXt-50
(Xie et al. 2016), whose groups are a few channels wide. ``width`` divides their channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Squeeze(nn.Module):
    """Scales channels by what their means say."""

    def __init__(self, channels: int, between: int, inner: type[nn.Module], outer: type[nn.Module]) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, between, 1), nn.Conv2d(between, channels, 1)
        self.inner, self.outer = inner(), outer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.outer(self.up(self.inner(self.down(x.mean((2, 3), keepdim=True)))))


def normed(come: int, go: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(come, go, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(go)]


class Inverted(nn.Module):
    """Wider, depthwise, narrow again."""

    def __init__(
        self, come: int, wide: int, go: int, kernel: int, stride: int, act: type[nn.Module], squeeze: nn.Module | None
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [*normed(come, wide), act()] if wide != come else []
        layers += [*normed(wide, wide, kernel, stride, wide), act()]
        layers += [squeeze] if squeeze is not None else []
        self.layers = nn.Sequential(*layers, *normed(wide, go))
        self.around = stride == 1 and come == go

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.around else self.layers(x)


class MobileNet(nn.Module):
    # Kernel, channels between, channels out, squeezed, hard swish, stride.
    ROWS = (
        (3, 16, 16, True, False, 2),
        (3, 72, 24, False, False, 2),
        (3, 88, 24, False, False, 1),
        (5, 96, 40, True, True, 2),
        (5, 240, 40, True, True, 1),
        (5, 240, 40, True, True, 1),
        (5, 120, 48, True, True, 1),
        (5, 144, 48, True, True, 1),
        (5, 288, 96, True, True, 2),
        (5, 576, 96, True, True, 1),
        (5, 576, 96, True, True, 1),
    )

    def __init__(self, width: int = 1, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [*normed(3, 16 // width, 3, 2), nn.Hardswish()]
        come = 16 // width
        for kernel, wide, go, squeezed, hard, stride in self.ROWS:
            wide, go = wide // width, go // width
            between = max(8, (wide // 4 + 4) // 8 * 8)
            squeeze = Squeeze(wide, between, nn.ReLU, nn.Hardsigmoid) if squeezed else None
            layers.append(Inverted(come, wide, go, kernel, stride, nn.Hardswish if hard else nn.ReLU, squeeze))
            come = go
        self.features = nn.Sequential(*layers, *normed(come, 6 * come), nn.Hardswish())
        self.head = nn.Sequential(nn.Linear(6 * come, 1024 // width), nn.Hardswish(), nn.Linear(1024 // width, classes))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(pixels).mean((2, 3)))


class EfficientNet(nn.Module):
    # Widening, kernel, stride, channels out, how often.
    ROWS = (
        (1, 3, 1, 16, 1),
        (6, 3, 2, 24, 2),
        (6, 5, 2, 40, 2),
        (6, 3, 2, 80, 3),
        (6, 5, 1, 112, 3),
        (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )

    def __init__(self, width: int = 1, classes: int = 1000) -> None:
        super().__init__()
        come = 32 // width
        layers: list[nn.Module] = [*normed(3, come, 3, 2), nn.SiLU()]
        for wider, kernel, stride, go, count in self.ROWS:
            for at in range(count):
                wide = come * wider
                squeeze = Squeeze(wide, max(1, come // 4), nn.SiLU, nn.Sigmoid)
                layers.append(Inverted(come, wide, go // width, kernel, stride if at == 0 else 1, nn.SiLU, squeeze))
                come = go // width
        self.features = nn.Sequential(*layers, *normed(come, 4 * come), nn.SiLU())
        self.head = nn.Linear(4 * come, classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(pixels).mean((2, 3)))


class Next(nn.Module):
    """Depthwise with kernels of 7 by 7, a dense network over the channels, scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class Norm(nn.LayerNorm):
    """Over the channels of pictures."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, width: int = 1, classes: int = 1000, depths: tuple[int, ...] = (3, 3, 9, 3)) -> None:
        super().__init__()
        come = 96 // width
        layers: list[nn.Module] = [nn.Conv2d(3, come, 4, 4), Norm(come, eps=1e-6)]
        for at, depth in enumerate(depths):
            if at:
                layers += [Norm(come, eps=1e-6), nn.Conv2d(come, 2 * come, 2, 2)]
                come *= 2
            layers += [Next(come) for _ in range(depth)]
        self.features, self.norm, self.head = nn.Sequential(*layers), nn.LayerNorm(come, eps=1e-6), nn.Linear(come, classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.features(pixels).mean((2, 3))))


class Grouped(nn.Module):
    def __init__(self, come: int, between: int, go: int, stride: int, groups: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *normed(come, between), nn.ReLU(), *normed(between, between, 3, stride, groups), nn.ReLU(), *normed(between, go)
        )
        self.around = nn.Sequential(*normed(come, go, 1, stride)) if stride != 1 or come != go else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.layers(x) + self.around(x))


class ResNeXt(nn.Module):
    """Xie et al. 2017; with one group and 64 channels between, it is ResNet-50 (He et al. 2015)."""

    def __init__(
        self, width: int = 1, classes: int = 1000, groups: int = 32, between: int = 128, depths: tuple[int, ...] = (3, 4, 6, 3)
    ) -> None:
        super().__init__()
        come = 64 // width
        layers: list[nn.Module] = [*normed(3, come, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        for stage, depth in enumerate(depths):
            narrow, go = (between << stage) // width, (256 << stage) // width
            for at in range(depth):
                layers.append(Grouped(come, narrow, go, 2 if stage and not at else 1, groups))
                come = go
        self.features, self.head = nn.Sequential(*layers), nn.Linear(come, classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(pixels).mean((2, 3)))
