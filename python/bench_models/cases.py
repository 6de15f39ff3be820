"""The models that are measured: networks, element types and inputs, the same wherever they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import mobile, networks

PICTURE = (3, 224, 224)
# The words that the transformers know, and how many they read.
WORDS, TOKENS = 8192, 128
# Tokens that one which writes step by step remembers.
CACHED = 1024


@dataclass(frozen=True)
class Case:
    """A network with its element type and the shape of its input."""

    name: str
    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    # Of the input, where it is not that of the weights.
    words: int = 0
    # Whether its latency is compared; all of them are tenants beside each other.
    compared: bool = True
    # The most items of a call, where their number is free.
    items: int | None = None

    def model(self) -> Any:
        """The network with its weights, which are random and always the same with one release of PyTorch."""
        torch.manual_seed(0)
        model = networks.randomized(self.network())
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                # With PyTorch's own, values fade from layer to layer until only the biases are left.
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        return model.to(self.dtype)

    def free(self) -> dict[str, Any]:
        """What `torch.export` is told of it: its input, and the dimension that is free."""
        if self.items is None:
            return {"example_inputs": (self.example(),)}
        several = self.example().repeat(8, *[1] * (len(self.shape) - 1))
        return {"example_inputs": (several,), "dynamic_shapes": ({0: torch.export.Dim("items", min=1, max=self.items)},)}

    def example(self) -> torch.Tensor:
        """Its input."""
        generator = torch.Generator().manual_seed(1)
        if self.words:
            return torch.randint(0, self.words, self.shape, generator=generator)
        return torch.randn(self.shape, generator=generator).to(self.dtype)


def _gpt() -> nn.Module:
    return networks.GPT(words=WORDS, width=512, heads=8, layers=6, tokens=TOKENS)


def _bert() -> nn.Module:
    return networks.GPT(words=WORDS, width=768, heads=12, layers=12, tokens=TOKENS, causal=False)


def _gpt_step() -> nn.Module:
    return networks.Step(words=WORDS, width=512, heads=8, layers=6, tokens=CACHED)


CASES = (
    Case("resnet18-1-fp32", networks.ResNet18, (1, *PICTURE)),
    Case("resnet18-8-fp32", networks.ResNet18, (8, *PICTURE)),
    Case("resnet18-8-fp16", networks.ResNet18, (8, *PICTURE), torch.float16),
    Case("gpt-fp32", _gpt, (1, TOKENS), words=WORDS),
    Case("gpt-bf16", _gpt, (1, TOKENS), torch.bfloat16, words=WORDS),
    Case("mobilenet-8-fp32", mobile.MobileNet, (8, *PICTURE)),
    Case("efficientnet-8-fp32", mobile.EfficientNet, (8, *PICTURE)),
    Case("convnext-8-fp16", mobile.ConvNeXt, (8, *PICTURE), torch.float16),
    Case("resnext50-8-fp16", mobile.ResNeXt, (8, *PICTURE), torch.float16),
    Case("lstm-32-fp32", networks.Reading, (8, 32, 256)),
    Case("vocoder-fp32", networks.Vocoder, (1, 80, 64)),
    Case("dense-fp32", lambda: networks.MLP(1024, 4096, 1024), (64, 1024), compared=False),
    Case("convolutional-fp32", networks.CNN, (16, 3, 64, 64), compared=False),
    Case("attention-fp16", lambda: networks.Block(256, 4), (4, TOKENS, 256), torch.float16, compared=False),
    # Of several tenants, in scripts/evaluate.
    Case("resnet50-8-fp16", lambda: mobile.ResNeXt(groups=1, between=64), (8, *PICTURE), torch.float16, compared=False),
    Case("bert-fp16", _bert, (1, TOKENS), torch.float16, words=WORDS, compared=False),
    # What runs calls together, and what keeps state: measured by `together` alone.
    Case("resnet18-any-fp16", networks.ResNet18, (1, *PICTURE), torch.float16, compared=False, items=32),
    Case("gpt-step-fp16", _gpt_step, (1,), torch.float16, words=WORDS, compared=False),
)


def named(name: str) -> Case:
    """The case of this name; a ValueError where there is none."""
    found = next((case for case in CASES if case.name == name), None)
    if found is None:
        raise ValueError(f"there is no model {name!r}, but {', '.join(case.name for case in CASES)}")
    return found
