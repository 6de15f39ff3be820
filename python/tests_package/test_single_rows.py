"""Products of one row and attention of one query, against PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bench_models.networks as models
from pappus import package


class Attends(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.how)


def kernels(built: Any) -> str:
    return " ".join(kernel["kernel_name"] for kernel in built.document["kernels"])


def error(built: Any, model: nn.Module, *given: torch.Tensor) -> float:
    """Of the package's result, relative to the largest value of the model in float64."""
    with torch.no_grad():
        wide = [each.double() if each.is_floating_point() else each for each in given]
        wanted = model.double()(*wide)
        model.to(given[0].dtype if given[0].is_floating_point() else torch.float32)
    found = torch.as_tensor(built.interpret(**dict(zip(built.blueprint["inputs"], given, strict=True)))["output"])
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float16, 2e-3)])
@pytest.mark.parametrize("masked", ["added", "left out", "left out everywhere"])
@pytest.mark.parametrize("how", [{}, {"scale": 0.3}, {"enable_gqa": True}], ids=["plain", "scaled", "grouped"])
def test_attention_of_one_query(dtype: torch.dtype, most: float, masked: str, how: dict[str, Any]) -> None:
    heads = 1 if "enable_gqa" in how else 2
    q, k, v = torch.randn(2, 2, 1, 16), torch.randn(2, heads, 9, 16), torch.randn(2, heads, 9, 4)
    q, k, v = (each.to(dtype) for each in (q, k, v))
    mask = torch.randn(2, 1, 1, 9).to(dtype)
    if masked != "added":
        mask = (mask > 0) if masked == "left out" else torch.zeros(2, 1, 1, 9, dtype=torch.bool)
    model = Attends(**how).eval()
    built = package.torch(model, (q, k, v, mask))
    assert "tem_fused" not in kernels(built)
    if masked == "left out everywhere":
        assert not built.interpret(q=q, k=k, v=v, mask=mask)["output"].any()
    else:
        assert error(built, model, q, k, v, mask) <= most


@pytest.mark.parametrize("queries", [2, 3])
def test_attention_of_several_queries_stays_as_it_is(queries: int) -> None:
    q, k, v = (torch.randn(1, 2, n, 16) for n in (queries, 8, 8))
    built = package.torch(Attends(is_causal=False).eval(), (q, k, v, torch.randn(1, 1, queries, 8)))
    assert "tem_fused" in kernels(built)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float16, 1e-3)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_dense_layer_of_one_row(dtype: torch.dtype, most: float, bias: bool) -> None:
    model = nn.Sequential(nn.Linear(96, 40, bias=bias), nn.GELU()).eval().to(dtype)
    x = torch.randn(1, 96).to(dtype)
    built = package.torch(model, (x,))
    assert "tem_fused" not in kernels(built)
    assert error(built, model, x) <= most
    assert "tem_fused" in kernels(package.torch(model.to(dtype), (torch.randn(2, 96).to(dtype),)))


def test_a_transformer_writes_token_by_token() -> None:
    torch.manual_seed(0)
    model = models.Step().eval()
    built = package.torch(model, (torch.tensor([3]),))
    assert "tem_fused" not in kernels(built)
    assert len(built.blueprint["state"]) == 5
    session = built.session()
    with torch.no_grad():
        for token in (5, 9, 2):
            given = torch.tensor([token])
            wanted = model(given)
            found = torch.as_tensor(session(token=given)["output"])
            assert float((found - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())
