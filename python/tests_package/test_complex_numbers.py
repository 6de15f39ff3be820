"""Complex numbers inside of a model: as eager PyTorch computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pappus import package
from pappus.package import Unsupported, complex_numbers
from test_models import launches, same

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Computes(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def agree(function: Function, x: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Compares the program of reals that is lowered with eager PyTorch, without lowering it."""
    program = torch.export.export(Computes(function), (x,))
    written = complex_numbers.as_pairs(program, program.run_decompositions({}))
    assert not complex_numbers.occur(written)
    found, wanted = written.module()(x), function(x)
    for one, other in [(found, wanted)] if isinstance(wanted, torch.Tensor) else zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * max(1.0, float(other.abs().max())))


class Rotates(nn.Module):
    """As Llama's first code does it."""

    freqs: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(8.0), 10000 ** -(torch.arange(0, 4, 2) / 4))
        self.register_buffer("freqs", torch.polar(torch.ones_like(angles), angles))

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        turned = pairs * self.freqs[: q.shape[1]].view(1, q.shape[1], 1, 2)
        return torch.view_as_real(turned).flatten(3).type_as(q)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rotary_embeddings_are_one_kernel(dtype: torch.dtype) -> None:
    model, q = Rotates().eval(), torch.randn(1, 6, 3, 4).to(dtype)
    built = package.torch(model, (q,))
    same(built, model, q, tolerance=1e-3 if dtype == torch.float16 else 1e-6)
    assert len(launches(built)) == 1
    assert built.weights["freqs"].array.shape == (8, 2, 2)
    free = {"q": {0: torch.export.Dim("batch", min=2, max=9), 1: torch.export.Dim("length", min=2, max=8)}}
    built = package.torch(model, (torch.randn(2, 5, 3, 4).to(dtype),), dynamic_shapes=free)
    same(built, model, torch.randn(3, 7, 3, 4).to(dtype), tolerance=1e-3)


class Caches(nn.Module):
    """Rotates one more line in each call, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.rotates = Rotates()
        self.register_buffer("keys", torch.zeros(8, 4))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turn = self.rotates.freqs[self.place]
        self.keys[self.place] = torch.view_as_real(torch.view_as_complex(x.view(1, 2, 2)) * turn).flatten(1)
        self.place += 1
        return x @ self.keys.T


def test_complex_numbers_beside_state() -> None:
    model = Caches().eval()
    session = package.torch(model, (torch.zeros(1, 4),)).session()
    for _ in range(3):
        x = torch.randn(1, 4)
        torch.testing.assert_close(torch.as_tensor(session(x=x)["output"]), model(x))


def z(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, x.flip(0) - 0.5)


def written(x: torch.Tensor) -> torch.Tensor:
    result = z(x).clone()
    result[1:3] = x[1:3]
    result[..., 0] = 1j
    result[torch.tensor([3]), 1:] = z(x)[0, 1:]
    return torch.view_as_real(result)


@pytest.mark.parametrize(
    "function",
    [
        written,
        lambda x: torch.view_as_real(torch.where(x > 0, z(x), 1j) + torch.nn.functional.pad(z(x), (1, 0), value=2.0)[:, 1:]),
        lambda x: torch.view_as_real(torch.nn.functional.pad(z(x), (1, 0), value=2.0)),
        lambda x: torch.sqrt(z(x)).imag + (torch.ones_like(z(x)) * 2j).imag + torch.zeros_like(z(x)).real,
        lambda x: (z(x) * 2j + 1 - z(x) / (1 + 3j)).imag,
        lambda x: torch.view_as_real((x * 1j - z(x)) / (z(x) + 2)),
        lambda x: torch.view_as_real(z(x) @ z(x).mT.conj() + x @ x.T),
        lambda x: torch.view_as_real(torch.addmm(z(x), z(x)[:, :4], z(x)[:4], alpha=2)),
        lambda x: (z(x) ** 3).real + (z(x) ** 0.5).imag + z(x).reciprocal().real + torch.square(z(x)).imag,
        lambda x: z(x).abs() + z(x).angle() + z(x).conj().imag + torch.sgn(z(x)).real + z(x).log().imag,
        lambda x: torch.exp(1j * x).real + torch.polar(x.abs(), x).imag,
        lambda x: torch.view_as_real(torch.cat([z(x), x * (1 + 0j)], 1).sum(0) + z(x).mean()),
        lambda x: torch.view_as_real(torch.where(x > 0, z(x), torch.zeros(4, 5, dtype=torch.complex64))),
        lambda x: torch.view_as_real(torch.stack([z(x), torch.full((4, 5), 2 - 1j)]).roll(1, 2).masked_fill(x > 1, 0)),
        lambda x: sum(each.abs().sum() for each in z(x).split(2)) + torch.linalg.vector_norm(z(x)),
        lambda x: torch.view_as_real(torch.einsum("ij,ik->jk", z(x), z(x) + 1)),
        lambda x: ((z(x) == z(x)) & ~z(x).isnan() & (z(x) != 0)).float() + z(x).to(torch.complex128).real,
        lambda x: torch.view_as_real(z(x).mul_(1j).add_(x)[1:, [0, 2]].permute(1, 0).unsqueeze(0).expand(2, 2, 3)),
    ],
)
def test_operators_on_complex_numbers(function: Function) -> None:
    agree(function, torch.randn(4, 5))


def test_what_is_complex_at_the_ends_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"input 'x', which is complex: .*torch\.view_as_real of it"):
        package.torch(Computes(lambda x: x.abs()).eval(), (torch.randn(3, dtype=torch.complex64),))
    with pytest.raises(Unsupported, match=r"output 1 of the model, which is complex.* \(at .*test_complex_numbers\.py"):
        package.torch(Computes(lambda x: (x + 1, x * 1j)).eval(), (torch.randn(3),))

    class Adds(nn.Module):
        sum: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sum", torch.zeros(3, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.sum += x
            return self.sum.abs()

    with pytest.raises(Unsupported, match="'sum', which is complex and changed: state is real"):
        package.torch(Adds().eval(), (torch.randn(3),))


def test_operators_without_a_form_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"acosh\.default of complex numbers \(at .*: it has no form in real numbers here"):
        package.torch(Computes(lambda x: torch.acosh(z(x)).real).eval(), (torch.randn(2),))
    with pytest.raises(Unsupported, match=r"pow\.Tensor_Scalar of complex numbers \(at .*\(a part of the result is complex\)"):
        package.torch(Computes(lambda x: (z(x) ** 1j).real).eval(), (torch.randn(2),))
