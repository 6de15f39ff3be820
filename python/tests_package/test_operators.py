"""Operators that PyTorch leaves to a library, tensors made in ``forward``, random numbers: as eager PyTorch computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from pappus import package
from pappus.package import Unsupported, decompositions
from test_models import same

Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Computes(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def check(function: Function | nn.Module, x: torch.Tensor) -> None:
    model = function.eval() if isinstance(function, nn.Module) else Computes(function).eval()
    same(package.torch(model, (x,)), model, x)


LINES = torch.tensor([[0, 1, 1], [2, 2, 5], [0, 0, 0], [1, 2, 3]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(0.5),
        lambda x: x[:, torch.tensor([0, 2])] * x.new_tensor([3.0]),
        lambda x: torch.zeros(4, 6).scatter_add(1, torch.tensor([[0, 1, 1], [2, 2, 5], [0, 0, 0], [1, 2, 3]]), x),
    ],
    ids=["numbers", "indices", "places"],
)
def test_tensors_made_in_forward(function: Function) -> None:
    check(function, torch.randn(4, 3))


def test_a_softmax_of_more_than_a_block_has() -> None:
    # Its kernel calls functions that call the device's library, each in a file of its own.
    check(lambda x: torch.softmax(x, -1), torch.randn(2, 5000))


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, q, q, block_mask=self.mask, score_mod=lambda score, b, h, i, j: score + (i - j))


def test_flex_attention() -> None:
    check(Attends(), torch.randn(1, 1, 128, 16))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of 4, so that a few values are many."""
    monkeypatch.setattr(decompositions, "RUN", 4)


TIES = torch.tensor([[3.0, -1.0, float("nan"), 0.0, -0.0, 3.0, 2.0, 7.0, -5.0, 3.0, float("inf"), 1.0, -1.0]])


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_merges_runs_and_keeps_the_order_of_equals(descending: bool) -> None:
    for x in (TIES, torch.randint(-9, 9, (2, 11)), torch.randn(2, 9).half()):
        values, at = decompositions._ordered(x, 1, None, descending)
        wanted = torch.sort(x, dim=1, descending=descending, stable=True)
        assert torch.equal(at, wanted.indices)
        assert torch.equal(values.nan_to_num(99), wanted.values.nan_to_num(99))


def test_whole_numbers_without_sign_have_keys_in_their_order() -> None:
    for dtype, signed in ((torch.uint8, torch.int8), (torch.uint32, torch.int32), (torch.uint64, torch.int64)):
        # The least, another, and the two largest ones.
        keys = decompositions._keys(torch.tensor([0, 5, -2, -1], dtype=signed).view(dtype), False).tolist()
        assert keys == sorted(set(keys))


@pytest.mark.usefixtures("short")
def test_nothing_is_sorted_and_nothing_taken() -> None:
    for shape in ((0, 9), (2, 0), (0, 0)):
        assert decompositions._ordered(torch.zeros(shape), 1, None, False)[1].shape == shape
    assert decompositions._topk(torch.zeros(2, 9), 0)[0].shape == (2, 0)
    assert decompositions._topk(torch.zeros(0, 9), 1)[0].shape == (0, 1)


@pytest.mark.usefixtures("short")
def test_a_long_sort_is_kernels() -> None:
    check(lambda x: torch.sort(x, dim=0)[0], torch.randn(7, 2))


@pytest.mark.parametrize("length", [6, 40])
def test_the_largest_ones(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(lambda x: torch.topk(x, 3).values, torch.randn(2, 16))
    check(lambda x: torch.topk(x, 2, dim=0, largest=False).indices.float(), torch.randn(9, 2))
    monkeypatch.setattr(decompositions, "RUN", 8)
    x = torch.randn(2, length)
    assert torch.equal(decompositions._topk(x, 2)[1], torch.topk(x, 2).indices)


@pytest.mark.parametrize("function", [lambda x: x.median(1).values, lambda x: x.kthvalue(3, 1).values, lambda x: x.median()])
def test_middle_values(function: Function) -> None:
    check(function, torch.randn(2, 7))


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scattering_that_reduces(reduce: str, include_self: bool) -> None:
    start, source = torch.rand(4, 6), torch.randn(4, 3)
    found = decompositions._scatter_reduce(start, 1, LINES, source, reduce, include_self=include_self)
    torch.testing.assert_close(found, start.scatter_reduce(1, LINES, source, reduce, include_self=include_self))


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax"])
def test_places_that_no_index_reaches_stay(reduce: str) -> None:
    start, source = torch.rand(4, 6), torch.randn(3, 2)
    found = decompositions._scatter_reduce(start, 1, LINES[:3, :2], source, reduce, include_self=False)
    torch.testing.assert_close(found, start.scatter_reduce(1, LINES[:3, :2], source, reduce, include_self=False))


def test_many_in_one_place_are_counted_and_summed() -> None:
    # 2049 is no number of float16, and 256 none of uint8.
    for count, dtype, reduce in ((4096, torch.float16, "mean"), (256, torch.uint8, "amax")):
        source, places = torch.ones(count, dtype=dtype), torch.zeros(count, dtype=torch.int64)
        found = decompositions._scatter_reduce(torch.zeros(2, dtype=dtype), 0, places, source, reduce, include_self=False)
        assert found.dtype == dtype
        assert found.tolist() == [1, 0]
    assert decompositions._histc(torch.zeros(4096, dtype=torch.float16), 1, -1, 1).tolist() == [4096]


def test_too_many_questions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompositions, "_MOST_ASKED", 3 * 4 * 6 - 1)
    with pytest.raises(Unsupported, match="it would ask 72 times"):
        decompositions._scatter_reduce(torch.rand(4, 6), 1, LINES, torch.randn(4, 3), "amax")
    words, bags = torch.tensor([1, 2, 3, 4]), torch.tensor([0, 2])
    with pytest.raises(Unsupported, match="it would ask 80 times"):
        decompositions._embedding_bag(torch.rand(9, 10), words, bags, mode=2)


def test_scattering_is_kernels() -> None:
    check(lambda x: torch.ones(4, 6).scatter_reduce(1, x[:, :3].long(), x * 0.5, "amax"), torch.randint(0, 6, (4, 3)).float())
    check(lambda x: torch.ones(6, 3).index_reduce(0, torch.tensor([0, 1, 1, 5]), x, "amin"), torch.randn(4, 3))


class Bags(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 8, mode=mode, padding_idx=2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.bag(words)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode: str) -> None:
    check(Bags(mode), torch.tensor([[1, 2, 3], [2, 2, 2], [9, 0, 9]]))


@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.GRUCell(6, 5), (2, 6)), (nn.LSTMCell(6, 5), (2, 6)), (nn.RNN(4, 4), (3, 2, 4))],
    ids=["gru", "lstm", "rnn"],
)
def test_recurrent_cells(module: nn.Module, shape: tuple[int, ...]) -> None:
    def first(found: Any) -> torch.Tensor:
        return found[0] if isinstance(found, tuple) else found

    model = nn.Sequential(module)
    model.forward = lambda x: first(module(x))  # type: ignore[method-assign]
    check(model, torch.randn(shape))


@pytest.mark.parametrize(
    "function",
    [
        # What the refusal of bincount says to write.
        lambda x: torch.zeros(7, dtype=torch.int32).scatter_add(0, (3 * x[0]).long() + 3, torch.ones(5, dtype=torch.int32)),
        lambda x: torch.histc(x, 5, -1.0, 1.0),
        lambda x: torch.histc(x, 5, 0.25, 0.25),
        lambda x: torch.cdist(x, x[:2]),
        lambda x: F.interpolate(x[None, None], size=(3, 2), mode="bilinear", antialias=True),
        lambda x: F.interpolate(x[None, None], size=(3, 9), mode="bicubic", antialias=True),
    ],
    ids=["bincount", "histc", "histc of all", "cdist", "bilinear", "bicubic"],
)
def test_others(function: Function) -> None:
    check(function, torch.rand(6, 5) * 2 - 1)


@pytest.mark.parametrize(("mode", "padding"), [("bilinear", "reflection"), ("nearest", "border"), ("bicubic", "zeros")])
def test_places_of_a_picture_that_are_computed(mode: str, padding: str) -> None:
    grid = torch.rand(2, 5, 3, 2) * 3 - 1.5
    check(lambda x: F.grid_sample(x, grid, mode, padding, align_corners=mode == "bicubic"), torch.randn(2, 3, 6, 7))


@pytest.mark.parametrize(("mode", "padding"), [("bilinear", "border"), ("nearest", "zeros"), ("nearest", "reflection")])
def test_places_of_a_volume_that_are_computed(mode: str, padding: str) -> None:
    grid = torch.rand(2, 3, 4, 2, 3) * 3 - 1.5
    check(lambda x: F.grid_sample(x, grid, mode, padding, align_corners=padding == "border"), torch.randn(2, 3, 4, 5, 6))


def test_random_numbers_come_from_an_input() -> None:
    built = package.torch(Computes(lambda x: x + torch.rand(64)).eval(), (torch.zeros(64),))
    assert built.blueprint["inputs"] == ["x", "seed"]
    assert built.blueprint["types"]["seed"] == {"dtype": "i64", "shape": [{"Absolute": 1}]}
    drawn = [built.interpret(x=np.zeros(64, np.float32), seed=np.array([seed]))["output"] for seed in (5, 5, 6)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert 0 <= drawn[0].min() < 0.2
    assert 0.8 < drawn[0].max() < 1


@pytest.mark.parametrize("draw", [torch.rand_like, lambda x: F.dropout(x, 0.5, training=True)], ids=["rand", "dropout"])
def test_each_operator_that_draws_has_a_seed_of_its_own(draw: Function) -> None:
    class DrawsTwice(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return draw(x), draw(x)

    built = package.torch(DrawsTwice().eval(), (torch.ones(64),))
    assert built.blueprint["types"]["seed"]["shape"] == [{"Absolute": 2}]
    first = built.interpret(x=np.ones(64, np.float32), seed=np.array([5, 6]))
    other = built.interpret(x=np.ones(64, np.float32), seed=np.array([5, 7]))
    assert not np.array_equal(first["output0"], first["output1"])
    assert np.array_equal(first["output0"], other["output0"])
    assert not np.array_equal(first["output1"], other["output1"])


def test_an_exported_program_and_words_about_how_far_it_is() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(2, 4)
    program = torch.export.export(model, (x,))
    said: list[str] = []
    for _ in range(2):
        built = package.torch(program, say=said.append)
        assert built.blueprint["inputs"] == ["input"]
        same(built, model, x)
    assert "compiling kernel 1 of" in said[1]
