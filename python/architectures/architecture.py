"""What an architecture of the list is: how it is made, its weights, and what it is called with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# Arguments by place, or by name.
Inputs = tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True)
class Architecture:
    """A network with random weights, which are always the same with one release of its library."""

    name: str
    network: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    dtype: torch.dtype = torch.float32
    # As `torch.export` takes it.
    dynamic_shapes: Any = None
    # What is done to the network once it has its weights.
    finish: Callable[[Any], None] | None = None

    def model(self) -> Any:
        """The network with its weights, in the mode in which it is used."""
        torch.manual_seed(0)
        model = shaken(self.network().eval())
        torch.manual_seed(1)
        args, kwargs = called(self.inputs())
        model = settled(model, args, kwargs).to(self.dtype)
        if self.finish is not None:
            self.finish(model)
        return model

    def example(self, seed: int = 1) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What it is called with: arguments by place, and by name."""
        torch.manual_seed(seed)
        return called(torch.utils._pytree.tree_map(self._typed, self.inputs()))

    def _typed(self, value: Any) -> Any:
        return value.to(self.dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def called(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by place, and by name."""
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})


def shaken(model: nn.Module) -> nn.Module:
    """Draws anew what begins as a constant: biases, scales of norms and of layers.

    Left as they are, mistakes with them would not show, and layers whose scale is next to nothing would not either.
    """
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() < 2 or not parameter.is_floating_point() or bool((parameter != parameter.view(-1)[0]).any()):
                continue
            value = float(parameter.view(-1)[0])
            if abs(value) > 1e-2:
                parameter.uniform_(0.5, 1.5, generator=generator).mul_(value)
            else:
                parameter.normal_(0, 0.1 if parameter.dim() < 2 else 0.02, generator=generator)
    return model


def settled(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> nn.Module:
    """Has norms take statistics like those of what they are given, as trained ones have.

    Otherwise values fade from layer to layer, until results hardly depend on inputs.
    """
    generator = torch.Generator().manual_seed(8)

    def settle(module: Any, given: tuple[torch.Tensor, ...]) -> None:
        # Of all channels together: those of a few places in a picture would be next to nothing for one of them.
        mean, deviation = given[0].mean(), given[0].std()
        module.running_mean.normal_(0, 0.2, generator=generator).mul_(deviation).add_(mean)
        module.running_var.uniform_(0.5, 1.5, generator=generator).mul_(deviation**2)

    norms = [module for module in model.modules() if isinstance(getattr(module, "running_var", None), torch.Tensor)]
    hooks = [norm.register_forward_pre_hook(settle) for norm in norms]
    if norms:
        with torch.no_grad():
            model(*args, **kwargs)
    for hook in hooks:
        hook.remove()
    return model


def lively(network: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """The same with convolutions drawn as ReLU wants them: where nothing normalises, others fade."""

    def drawn() -> nn.Module:
        model = network()
        for module in model.modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        return model

    return drawn


def made(library: str, name: str, *args: Any, **settings: Any) -> Callable[[], Any]:
    """Calls ``name`` of a library once the network is needed: to list it takes no library."""
    return lambda: getattr(importlib.import_module(library), name)(*args, **settings)


def floats(*shape: int) -> torch.Tensor:
    """Random floats of this shape."""
    return torch.randn(shape)


def words(*shape: int, most: int = 256) -> torch.Tensor:
    """Random whole numbers of this shape, below ``most``."""
    return torch.randint(0, most, shape)


def picture(side: int, batch: int = 1) -> Callable[[], Inputs]:
    """One argument: pictures of three colours."""
    return lambda: (floats(batch, 3, side, side),)
