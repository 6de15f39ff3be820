"""Fourier transforms of fixed lengths: as eager PyTorch computes them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pappus import package
from pappus.package import Unsupported, fourier
from test_complex_numbers import Computes, agree, z
from test_models import same


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_transforms_within_a_layer_are_kernels() -> None:
    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 5, dtype=torch.complex64))
            self.turn = torch.tensor([1j, 2.0, -1j])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen = torch.fft.rfft(x, n=8, dim=-1, norm="ortho") * self.weight
            return torch.fft.irfft(seen, n=9, dim=-1, norm="ortho") + (seen * self.turn[:, None]).abs().mean()

    model, x = Mixes().eval(), torch.randn(2, 3, 7)
    built = package.torch(model, (x,))
    same(built, model, x)
    assert built.weights["weight"].array.shape == (3, 5, 2)
    assert built.weights["fourier_8"].array.shape == (8, 10)
    again = package.torch(torch.export.export(model, (x,)))
    same(again, model, x)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_transforms_of_any_side_and_norm(norm: str) -> None:
    def transforms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        length = x.shape[1]
        return (
            torch.fft.rfft(x, dim=1, norm=norm).imag,
            torch.fft.fft(z(x), dim=1, norm=norm).real,
            torch.fft.ifft(x, n=5, dim=1, norm=norm).imag,
            torch.fft.irfft(z(x), n=length, norm=norm),
            torch.view_as_real(torch.fft.rfft2(x, norm=norm)),
            torch.fft.irfftn(torch.fft.fftshift(torch.fft.fftn(x, norm=norm)), norm=norm),
            torch.fft.hfft(z(x), norm=norm),
            torch.fft.ihfft(x, n=6, norm=norm).real,
        )

    for length in (6, 7):
        agree(transforms, torch.randn(2, length, 4))
    agree(lambda x: (torch.fft.rfft(x, norm=norm).real, torch.fft.irfft(z(x), n=1, norm=norm)), torch.randn(1))


# The longest of one product, and the shortest of two; powers and others.
@pytest.mark.parametrize("length", [512, 513, 1000, 4096])
def test_long_transforms(length: int) -> None:
    def transforms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        forth = torch.fft.fft(x.double(), n=length, dim=0)
        back = torch.fft.irfft(z(x)[: length // 2 + 1], n=length, dim=0)
        return torch.view_as_real(torch.fft.rfft(x.T)), torch.view_as_real(torch.fft.ifft(z(x), dim=0)), back, forth.imag

    agree(transforms, torch.randn(length, 2))


def test_a_long_transform_is_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fourier, "MOST", 4)
    model = Computes(lambda x: torch.fft.irfft(torch.fft.rfft(x).conj() * 1j, n=12)).eval()
    for x in (torch.randn(2, 24), torch.randn(24, dtype=torch.float64)):
        same(package.torch(model, (x,)), model, x)


def test_spectrograms() -> None:
    window = torch.hann_window(8)
    spectrum = lambda x: torch.stft(x, 8, 4, window=window, return_complex=True)  # noqa: E731
    agree(lambda x: spectrum(x).abs(), torch.randn(2, 40))
    agree(
        lambda x: torch.view_as_real(torch.stft(x, 8, 3, onesided=False, normalized=True, return_complex=True)), torch.randn(40)
    )
    agree(lambda x: torch.istft(spectrum(x), 8, 4, window=window, length=40), torch.randn(2, 40))
    model = Computes(lambda x: spectrum(x).abs().square().clamp(min=1e-6).log()).eval()
    x = torch.randn(1, 24)
    same(package.torch(model, (x,)), model, x)
    model = Computes(lambda x: torch.istft(spectrum(x) * 2, 8, 4, window=window)).eval()
    built = package.torch(model, (x,))
    same(built, model, x)
    # Were each place that frames share a launch of its own, longer ones would have thousands.
    long = Computes(lambda x: torch.istft(torch.stft(x, 64, 16, return_complex=True), 64, 16)).eval()
    assert len(package.torch(long, (torch.randn(1, 400),)).plan.steps) <= 6


@pytest.mark.parametrize(("size", "step"), [(4, 2), (5, 2), (3, 5), (1, 1)])
def test_windows_are_added_up(size: int, step: int) -> None:
    frames = torch.randn(2, 3, 4, size)
    extent = 3 * step + size + (step > 1)
    add = lambda x: torch.ops.aten.unfold_backward(x, [2, 3, extent], 2, size, step)  # noqa: E731
    agree(add, frames)
    agree(lambda x: torch.ops.aten.unfold_backward(x.movedim(2, 1), [2, extent, 3], 1, size, step), frames)


def test_lengths_without_a_form_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"of 2063 values \(at .*\.py:\d+: .*: the prime 2063 .* such as n=2100"):
        package.torch(Computes(lambda x: torch.fft.rfft(x).abs()).eval(), (torch.randn(2, 2063),))
    length = {"x": {0: torch.export.Dim("length", min=2, max=9)}}
    with pytest.raises(Unsupported, match="a Fourier transform along a dimension that is free"):
        package.torch(Computes(lambda x: torch.fft.fft(x).abs()).eval(), (torch.randn(5),), dynamic_shapes=length)
