"""Networks that need PyTorch alone: recurrent ones, a transformer, recommendations, graphs, equations, points."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .architecture import Architecture, floats, words

_BATCH = torch.export.Dim("batch", min=1, max=64)


class _Reads(nn.Module):
    """A recurrent network over words: what it thinks of a text."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(256, 32)
        self.memory = kind(32, 48, num_layers=2, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(96, 5)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.scores(self.memory(self.words(text))[0][:, -1])


class _Encoder(nn.Module):
    """PyTorch's own transformer, with texts of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True, activation="gelu")
        self.words = nn.Embedding(256, 64)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, text: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.layers(self.words(text), src_key_padding_mask=padding)


class _Recommends(nn.Module):
    """DLRM: numbers and bags of categories, and the products of each pair of what these become."""

    def __init__(self, tables: int = 4, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(100, width, mode="sum") for _ in range(tables))
        self.below = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs[0] * (tables + 1) + pairs[1])
        self.above = nn.Sequential(nn.Linear(width + pairs.shape[1], 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        dense = self.below(numbers)
        bags = [table(categories[:, at]) for at, table in enumerate(self.tables)]
        each = torch.stack([dense, *bags], 1)
        products = (each @ each.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.above(torch.cat([dense, products], 1)).sigmoid()


class _Graph(nn.Module):
    """Two graph convolutions over a list of edges, and the mean of all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges[0], edges[1]
        degrees = torch.ones_like(nodes[:, 0]).index_add(0, target, torch.ones_like(target, dtype=nodes.dtype))
        norm = degrees.rsqrt()
        weights = (norm[source] * norm[target])[:, None]
        for layer in (self.first, self.second):
            given = layer(nodes)
            own = given * (norm * norm)[:, None]
            nodes = own.index_add(0, target, given[source] * weights).relu()
        return nodes.mean(0)


class _Attends(nn.Module):
    """Graph attention: each node weighs its neighbours, by a softmax over the edges that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.score = nn.Linear(16, 32), nn.Linear(64, 1)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges[0], edges[1]
        given = self.project(nodes)
        scores = nn.functional.leaky_relu(self.score(torch.cat([given[source], given[target]], 1)), 0.2)[:, 0]
        highest = torch.full_like(nodes[:, 0], -1e9).scatter_reduce(0, target, scores, "amax")
        weights = (scores - highest[target]).exp()
        total = torch.zeros_like(highest).scatter_add(0, target, weights)
        weights = weights / (total[target] + 1e-9)
        return torch.zeros_like(given).index_add(0, target, given[source] * weights[:, None])


class _Equation(nn.Module):
    """A neural differential equation, solved by fixed steps of Runge and Kutta."""

    def __init__(self, steps: int = 6) -> None:
        super().__init__()
        self.change = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 8))
        self.steps = steps

    def rate(self, time: float, state: torch.Tensor) -> torch.Tensor:
        return self.change(torch.cat([state, torch.full_like(state[:, :1], time)], 1))

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        step = 1 / self.steps
        for at in range(self.steps):
            time = at * step
            first = self.rate(time, state)
            second = self.rate(time + step / 2, state + first * step / 2)
            third = self.rate(time + step / 2, state + second * step / 2)
            fourth = self.rate(time + step, state + third * step)
            state = state + (first + 2 * second + 2 * third + fourth) * step / 6
        return state


class _Points(nn.Module):
    """PointNet: each point by itself, then the largest of all."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            layers += [nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU()]
        self.each, self.all = nn.Sequential(*layers), nn.Linear(128, 10)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.all(self.each(points).amax(-1)).log_softmax(-1)


class _Waves(nn.Module):
    """WaveNet: gated convolutions, dilated more from layer to layer, that see the past alone."""

    def __init__(self, width: int = 32, layers: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**at) for at in range(layers))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.last = nn.Conv1d(width, 16, 1)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        state, total = self.first(wave), 0
        for gated, skip in zip(self.gated, self.skips, strict=True):
            padded = nn.functional.pad(state, (gated.dilation[0], 0))
            kept, gate = gated(padded).chunk(2, 1)
            part = skip(kept.tanh() * gate.sigmoid())
            state, total = state + part, total + part
        return self.last(torch.relu(total))


class _Radiance(nn.Module):
    """NeRF: colour and density at points of space, of their sines and cosines."""

    def __init__(self, octaves: int = 6) -> None:
        super().__init__()
        self.register_buffer("scales", 2.0 ** torch.arange(octaves))
        self.layers = nn.Sequential(nn.Linear(6 * octaves, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, points: torch.Tensor) -> dict[str, torch.Tensor]:
        angles = (points[..., None] * self.scales).flatten(-2)
        found = self.layers(torch.cat([angles.sin(), angles.cos()], -1))
        return {"colour": found[..., :3].sigmoid(), "density": nn.functional.softplus(found[..., 3])}


def _graph() -> tuple[torch.Tensor, torch.Tensor]:
    return floats(20, 16), words(2, 60, most=20)


def _padded() -> tuple[torch.Tensor, torch.Tensor]:
    return words(2, 16), torch.arange(16)[None, :] >= torch.tensor([[16], [11]])


PLAIN = (
    Architecture("torch/lstm", lambda: _Reads(nn.LSTM), lambda: (words(4, 12),), dynamic_shapes=({0: _BATCH},)),
    Architecture("torch/gru", lambda: _Reads(nn.GRU), lambda: (words(4, 12),)),
    Architecture("torch/transformer_encoder", _Encoder, _padded),
    Architecture("torch/dlrm", _Recommends, lambda: (floats(8, 13), words(8, 4, 3, most=100))),
    Architecture("torch/graph_convolution", _Graph, _graph),
    Architecture("torch/graph_attention", _Attends, _graph),
    Architecture("torch/neural_ode", _Equation, lambda: (floats(16, 8),)),
    Architecture("torch/pointnet", _Points, lambda: (floats(2, 3, 128),)),
    Architecture("torch/wavenet", _Waves, lambda: (floats(1, 1, 128),)),
    Architecture("torch/nerf", _Radiance, lambda: (floats(128, 3),)),
)
