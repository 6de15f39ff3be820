"""Convolutions of every kind: right numbers by Triton's interpreter, in the few kernels that are meant for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bench_models import mobile, networks
from pappus import package
from pappus.package import Package, candidates, choose, convolution_kernels
from test_models import launches, same


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Templates from which a configuration was picked, and the configurations."""
    found: list[str] = []
    pick = candidates.Choices.pick

    def noted(self: Any, choices: list[Any]) -> list[Any]:
        picked = pick(self, choices)
        found.extend(f"{choice.name} {choice.description}" for choice in picked)
        return picked

    monkeypatch.setattr(candidates.Choices, "pick", noted)
    return found


def packaged(model: nn.Module, *shape: int, **more: Any) -> Package:
    """A model's package, which computes what the model does."""
    model, x = model.eval(), torch.randn(shape)
    built = package.torch(model, (x,), **more)
    same(built, model, x)
    return built


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv2d(24, 24, 3, padding=1, groups=24), (2, 24, 5, 7)),
        (nn.Conv2d(12, 24, 5, stride=2, padding=2, groups=12, bias=False), (1, 12, 11, 10)),
        (nn.Conv2d(16, 16, 3, padding=3, dilation=3, groups=16), (1, 16, 8, 8)),
        (nn.Conv2d(8, 8, 9, padding=4, groups=8), (1, 8, 9, 9)),
        (nn.Conv2d(3, 3, 3, padding=1, groups=3), (2, 3, 6, 6)),
        (nn.ConvTranspose2d(12, 12, 4, stride=2, padding=1, groups=12), (1, 12, 4, 5)),
        (nn.Conv1d(12, 12, 5, padding=2, groups=12), (2, 12, 21)),
        (nn.Conv1d(1, 20, 10, stride=5), (2, 1, 50)),
        (nn.Conv1d(10, 10, 40, stride=3, groups=10), (1, 10, 60)),
    ],
    ids=["3", "5 by 2, two of each", "dilated", "9", "few channels", "transposed", "1-d", "from one channel", "a long 1-d"],
)
def test_one_channel_each(model: nn.Module, shape: tuple[int, ...], taken: list[str]) -> None:
    built = packaged(model, *shape)
    assert ["depthwise_convolution" in name for name in taken] == [True]
    # At most one kernel before it, which puts channels innermost; the bias is added in it.
    assert len(launches(built)) <= 2


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv2d(16, 24, 3, padding=1, groups=4), (2, 16, 5, 5)),
        (nn.Conv2d(64, 96, 3, stride=2, groups=2), (1, 64, 7, 7)),
        (nn.Conv2d(12, 20, 3, padding=2, dilation=2), (1, 12, 7, 7)),
        (nn.ConvTranspose2d(12, 20, 4, stride=2, padding=1), (2, 12, 4, 4)),
        (nn.ConvTranspose2d(12, 24, 3, stride=2, padding=1, dilation=2, output_padding=1, groups=3), (1, 12, 4, 5)),
        (nn.ConvTranspose1d(12, 6, 8, stride=4, padding=2), (2, 12, 9)),
        (nn.Conv1d(12, 24, 3, padding=2, dilation=2), (2, 12, 15)),
    ],
    ids=["narrow groups", "wide groups", "dilated", "transposed", "all of it", "1-d transposed", "1-d dilated"],
)
def test_groups_dilation_and_transposition(model: nn.Module, shape: tuple[int, ...], taken: list[str]) -> None:
    built = packaged(model, *shape)
    assert ["grouped_convolution" in name for name in taken] == [True]
    assert len(launches(built)) <= 2


def test_one_dimension_is_two_of_which_one_is_1(taken: list[str]) -> None:
    packaged(nn.Conv1d(12, 24, 5, padding=2), 2, 12, 21)
    assert ["convolution2d" in name for name in taken] == [True]
    model, x = nn.Conv1d(4, 8, 3, padding=1).eval(), torch.randn(4, 9)
    same(package.torch(model, (x,)), model, x)


@pytest.mark.parametrize(
    ("model", "shape", "kind"),
    [
        (nn.Conv3d(8, 6, (3, 2, 3), groups=2, padding=1), (2, 8, 4, 4, 3), "convolution3d"),
        (nn.Conv3d(6, 5, 3, dilation=(2, 1, 2), padding=2, bias=False), (1, 6, 5, 4, 6), "grouped_convolution"),
        (nn.Conv3d(4, 4, (2, 3, 1), dilation=(3, 2, 1), groups=4, stride=(2, 1, 1)), (4, 7, 6, 3), "grouped_convolution"),
        (nn.ConvTranspose3d(2, 3, 2, dilation=2), (1, 2, 3, 3, 3), "grouped_convolution"),
        (
            nn.ConvTranspose3d(4, 6, (3, 2, 4), stride=(2, 3, 1), padding=(1, 0, 2), output_padding=(1, 2, 0), groups=2),
            (2, 4, 3, 2, 4),
            "grouped_convolution",
        ),
        (nn.ConvTranspose3d(3, 3, (1, 2, 2), stride=3, padding=1, groups=3), (1, 3, 3, 3, 3), "depthwise_convolution"),
    ],
    ids=["groups", "dilated", "one channel each, dilated, no batch", "transposed", "transposed groups", "cut"],
)
def test_three_dimensions(model: nn.Module, shape: tuple[int, ...], kind: str, taken: list[str]) -> None:
    packaged(model, *shape)
    assert [kind in name for name in taken] == [True]


@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("channels", [3, 16], ids=["rows innermost", "channels innermost"])
def test_every_way_to_share_a_row_is_right(columns: int, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted(choice: Any, *_: Any) -> float:
        return float(choose.options_of(choice)["COLUMNS"] != columns)

    monkeypatch.setattr(choose, "estimate", wanted)
    model = nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=channels)
    built = packaged(model, 1, channels, 9, 9)
    (kernel,) = [kernel for name, kernel in built.plan.kernels.items() if "tem" in name]
    assert f"COLUMNS : tl.constexpr = {columns}" in kernel.function.src


class Mixed(nn.Module):
    """What stands behind convolutions in most models."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.third = nn.Conv2d(16, 16, 3, padding=1, groups=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.second(nn.functional.hardswish(self.norm(self.first(x)))) + x)
        return nn.functional.gelu(self.third(y))


def test_what_follows_is_computed_in_the_kernel() -> None:
    model = networks.randomized(Mixed())
    names = [name for name, _, _ in launches(packaged(model, 1, 16, 6, 6))]
    # One for each, and one for the input.
    assert len(names) == 4
    assert sum("tem" in name for name in names) == 3


def test_weights_lie_as_kernels_read_them() -> None:
    model = networks.randomized(Mixed())
    built = packaged(model, 1, 16, 6, 6)
    assert built.plan.orders["first.weight"] in ((2, 1, 3, 0), (1, 2, 3, 0), (2, 3, 1, 0))
    assert built.plan.orders["second.weight"] == (0, 2, 3, 1)
    stored = built.weights["second.weight"].array
    assert torch.equal(torch.from_numpy(stored), model.second.weight.detach().permute(0, 2, 3, 1))
    assert "norm.weight" not in built.plan.orders


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x)) * self.layer.weight.sum()


def test_a_weight_that_others_read_too_stays_as_it_is() -> None:
    assert packaged(Twice(), 1, 8, 5, 5).plan.orders == {}


def test_any_batch() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU(), nn.Conv2d(8, 16, 3, groups=4)).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    built = package.torch(model, (torch.randn(4, 8, 6, 6),), dynamic_shapes=({0: batch},))
    for pictures in (2, 5):
        same(built, model, torch.randn(pictures, 8, 6, 6))
    model = nn.ConvTranspose3d(2, 3, 2, stride=2).eval()
    depth = torch.export.Dim("depth", min=2, max=64)
    built = package.torch(model, (torch.randn(4, 2, 3, 3, 2),), dynamic_shapes=({0: batch, 2: depth},))
    for pictures, places in ((2, 3), (3, 2)):
        same(built, model, torch.randn(pictures, 2, places, 3, 2))


def test_candidates_are_tuned_as_others_are() -> None:
    model, x = nn.Conv2d(32, 32, 3, padding=1, groups=32).eval(), torch.randn(1, 32, 6, 6)
    built = package.torch(model, (x,), candidates=3)
    assert "pappus_depthwise_convolution" in built.extra["tuning/points.json"].decode()
    assert sum(path.endswith("function.json") for path in built.extra) == 3


def test_kernels_have_names_that_tables_of_measurements_keep() -> None:
    names = (convolution_kernels.depthwise.name, convolution_kernels.grouped.name)
    assert names == ("pappus_depthwise_convolution", "pappus_grouped_convolution")


def test_a_mobile_network() -> None:
    model = networks.randomized(mobile.Inverted(8, 32, 8, 5, 1, nn.Hardswish, mobile.Squeeze(32, 8, nn.ReLU, nn.Hardsigmoid)))
    packaged(model, 1, 8, 7, 7)


def test_pooling_before_a_convolution_is_a_kernel_of_its_own() -> None:
    model = nn.Sequential(nn.Conv2d(3, 192, 1), nn.MaxPool2d(3, 1, 1), nn.Conv2d(192, 32, 1)).eval()
    x = torch.randn(1, 3, 8, 8)
    built = package.torch(model, (x,))
    # In the convolution's, each of nine places that are read would take shared memory for all stages.
    assert any(
        "max_pool" in kernel["kernel_name"] and "tem" not in kernel["kernel_name"] for kernel in built.document["kernels"]
    )
    same(built, model, x)


def test_a_tile_of_groups_reads_no_channel_that_is_not_there(taken: list[str]) -> None:
    # The second tile has one group of its two: where the second would be, the next pixel's first channels lie.
    model, x = nn.Conv2d(48, 48, 3, padding=1, groups=3).eval(), torch.randn(1, 48, 4, 4)
    built = package.torch(model, (x,))
    assert any("grouped_convolution" in name for name in taken)
    x[0, :16] = float("inf")
    with torch.no_grad():
        wanted = model(x)[0, 32:]
    found = torch.as_tensor(next(iter(built.interpret(**{built.blueprint["inputs"][0]: x}).values())))[0, 32:]
    assert torch.isfinite(wanted).all()
    assert torch.allclose(found, wanted, atol=1e-4)
