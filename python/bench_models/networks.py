"""Networks with the structures that matter: dense, convolutional, attention, residual.

The tests of packaging take them small (python/tests_package), scripts/gpu-check in the sizes that are used (:mod:`.cases`).
They are written for every release of PyTorch that either has: packages are made with one, the GPU's machine has another.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class MLP(nn.Module):
    def __init__(self, come: int = 32, between: int = 48, go: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(come, between), nn.Linear(between, go), nn.LayerNorm(go)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.second(F.gelu(self.first(x)))).softmax(-1)


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.head = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.Linear(32, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(pixels))), 2)
        return self.head(F.relu(self.second(x)).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A transformer that writes; not ``causal`` it reads, as BERT does (Devlin et al. 2018)."""

    def __init__(
        self, words: int = 64, width: int = 32, heads: int = 2, layers: int = 2, tokens: int = 16, causal: bool = True
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Remembering(Block):
    """Takes one token after the other, and remembers keys and values of those before."""

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__(width, heads)
        self.register_buffer("keys", torch.zeros(1, heads, tokens, width // heads))
        self.register_buffer("values", torch.zeros(1, heads, tokens, width // heads))

    def step(self, x: torch.Tensor, place: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One token at a place; the mask is added to the scores of those that are remembered."""
        heads = self.heads
        q, k, v = self.qkv(self.norm1(x)).view(1, 3, heads, 1, x.shape[1] // heads).unbind(1)
        self.keys.index_copy_(2, place, k)
        self.values.index_copy_(2, place, v)
        attended = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.out(attended.reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Step(nn.Module):
    """The scores of the next token, by one token and what is remembered of those before."""

    def __init__(self, words: int = 64, width: int = 32, heads: int = 2, layers: int = 2, tokens: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Remembering(width, heads, tokens) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        x = self.words(token) + self.places(self.place)
        places = torch.arange(self.places.num_embeddings, device=token.device)
        mask = torch.where(places > self.place, float("-inf"), 0.0).to(x.dtype)[None, None, None]
        for block in self.blocks:
            x = block.step(x, self.place, mask)
        self.place.add_(1)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, come: int, go: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(come, go, 3, stride, 1, bias=False), nn.BatchNorm2d(go)
        self.conv2, self.bn2 = nn.Conv2d(go, go, 3, 1, 1, bias=False), nn.BatchNorm2d(go)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or come != go:
            self.around = nn.Sequential(nn.Conv2d(come, go, 1, stride, bias=False), nn.BatchNorm2d(go))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.around(x))


class ResNet18(nn.Module):
    """He et al. 2015; with ``width`` 64 and 1000 classes it is torchvision's, layer by layer."""

    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        for stage, factor in enumerate((1, 2, 4, 8)):
            come = width if stage == 0 else width * factor // 2
            stages += [Residual(come, width * factor, 1 if stage == 0 else 2), Residual(width * factor, width * factor, 1)]
        self.stages, self.fc = nn.Sequential(*stages), nn.Linear(width * 8, classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(pixels))), 3, 2, 1)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(self.stages(x), 1), 1))


class Reading(nn.Module):
    """An LSTM over a sequence, and scores of its end."""

    def __init__(self, width: int = 256, classes: int = 64) -> None:
        super().__init__()
        self.memory, self.scores = nn.LSTM(width, width, batch_first=True), nn.Linear(width, classes)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        return self.scores(self.memory(steps)[0][:, -1])


class Vocoder(nn.Module):
    """From a spectrogram to a wave, as HiFi-GAN (Kong et al. 2020): transposed and dilated convolutions of one dimension."""

    def __init__(self, bands: int = 80, width: int = 128) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, width, 7, padding=3)
        self.wider, self.dilated = nn.ModuleList(), nn.ModuleList()
        for factor in (8, 8, 4):
            self.wider.append(nn.ConvTranspose1d(width, width // 2, 2 * factor, factor, factor // 2))
            width //= 2
            self.dilated.append(nn.ModuleList(nn.Conv1d(width, width, 3, dilation=by, padding=by) for by in (1, 3, 5)))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, bands: torch.Tensor) -> torch.Tensor:
        wave = self.first(bands)
        for wider, dilated in zip(self.wider, self.dilated, strict=True):
            wave = wider(F.leaky_relu(wave, 0.1))
            for layer in dilated:
                wave = wave + layer(F.leaky_relu(wave, 0.1))
        return torch.tanh(self.last(F.leaky_relu(wave, 0.1)))


def randomized(model: nn.Module) -> Any:
    """Statistics and scales of the norms that are not all zero and one, so that mistakes with them show."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(0, 0.2, generator=generator)
                module.running_var.uniform_(0.5, 1.5, generator=generator)
                module.weight.uniform_(0.5, 1.5, generator=generator)
    return model.eval()
