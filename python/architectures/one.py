"""Packages one architecture, in a process of its own: ``python3 -m architectures.one NAME [--interpret SECONDS]``.

Prints one JSON object: what was refused, or how long packaging took and what came of it; with ``--interpret``, also how far
the package's results are from those of eager PyTorch, both on the processor.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from pappus import package

from .architecture import Architecture
from .zoo import named


def tensors(tree: Any) -> list[torch.Tensor]:
    """Those of a tree, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest value; of whole numbers, infinite where one differs."""
    if found.shape != wanted.shape:
        return float("inf")
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(found, wanted) else float("inf")
    if not torch.equal(found.isfinite(), wanted.isfinite()):
        return float("inf")
    found, wanted = (value.double().nan_to_num(0, 0, 0) for value in (found, wanted))
    most = float((found - wanted).abs().max()) if wanted.numel() else 0.0
    return most / (float(wanted.abs().max()) or 1.0) if most else 0.0


def eager(architecture: Architecture, seed: int = 1) -> list[torch.Tensor]:
    """What PyTorch computes, in float32 whatever the package computes in."""

    def exact(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    args, kwargs = torch.utils._pytree.tree_map(exact, architecture.example(seed))
    with torch.no_grad():
        return tensors(architecture.model().float()(*args, **kwargs))


def interpreted(built: Any, architecture: Architecture) -> list[torch.Tensor]:
    """What the package computes."""
    args, kwargs = architecture.example()
    given = {name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
    by_place = iter(tensors(args))
    inputs = {name: given[name] if name in given else next(by_place) for name in built.blueprint["inputs"]}
    found = built.interpret(**inputs)
    return [torch.as_tensor(found[name]) for name in built.blueprint["outputs"]]


def packaged(architecture: Architecture) -> tuple[Any, float]:
    """The package, and how many seconds it took."""
    # Results are compared with those of plain float32.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model, (args, kwargs) = architecture.model(), architecture.example()
    start = time.monotonic()
    built = package.torch(model, args, kwargs=kwargs, dynamic_shapes=architecture.dynamic_shapes, targets=["sm_90"])
    return built, time.monotonic() - start


def compared(built: Any, architecture: Architecture) -> dict[str, Any]:
    """How far results are from PyTorch's, and how far these are from those for other inputs, where it says little else."""
    wanted = eager(architecture)
    found = interpreted(built, architecture)
    others = eager(architecture, seed=2)
    if len(found) != len(wanted):
        return {"error": float("inf")}
    errors = [error(one.float() if one.is_floating_point() else one, other) for one, other in zip(found, wanted, strict=True)]
    return {"error": max(errors), "change": max(error(*both) for both in zip(others, wanted, strict=True))}


class _Late(BaseException):
    """Ends the comparison; Triton's interpreter, which it passes through, makes others of ordinary exceptions."""


def _end(*_: object) -> None:
    raise _Late


def main(arguments: Sequence[str] | None = None) -> int:
    """Packages it."""
    parser = argparse.ArgumentParser(prog="python3 -m architectures.one", description=__doc__)
    parser.add_argument("architecture", type=named, metavar="NAME")
    parser.add_argument("--interpret", type=int, default=0, metavar="SECONDS", help="how long its results may take")
    given = parser.parse_args(arguments)
    try:
        built, seconds = packaged(given.architecture)
    except package.PackageError as refused:
        print(json.dumps({"refused": str(refused), "named": isinstance(refused, package.Unsupported)}))
        return 0
    steps = built.blueprint["control_flow"]
    said = {"seconds": seconds, "kernels": len(built.document["kernels"]), "steps": len(steps)}
    if given.interpret:
        signal.signal(signal.SIGALRM, _end)
        signal.alarm(given.interpret)
        start = time.monotonic()
        try:
            said |= compared(built, given.architecture)
        except _Late:
            said["late"] = True
        signal.alarm(0)
        said["interpreted"] = time.monotonic() - start
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
