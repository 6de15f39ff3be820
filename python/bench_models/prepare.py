"""Writes what packages of :mod:`.make` were carried without: ``python3 -m bench_models.prepare DIR``.

Weights, which are those of the same model in PyTorch on this machine, and each model's input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .cases import CASES, Case

INPUT, OUTPUT = "input.bin", "output.bin"
# Of weights that packages have in another order of dimensions than models: that order, written by `make`.
ORDERS = "orders.json"


def array(tensor: torch.Tensor) -> Any:
    """As numpy, which has no bf16: its bytes as they are."""
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def prepare(case: Case, package: Path) -> str:
    """Completes a model's package; returns what its input is called."""
    document = json.loads((package / "function.json").read_text())
    state = case.model().state_dict()
    orders = json.loads((package / ORDERS).read_text())
    (package / "weights").mkdir(exist_ok=True)
    for name, path in document["weight_files"].items():
        if name not in state:
            if not (package / path).is_file():
                raise SystemExit(f"{package}: {name} is no weight of the model, and no file of the package: make it again")
            continue
        weight = state[name].permute(orders[name]) if name in orders else state[name]
        if path.endswith(".npy"):
            np.save(package / path, array(weight), allow_pickle=False)
        else:
            array(weight).tofile(package / path)
    array(case.example()).tofile(package / INPUT)
    (name,) = document["blueprint"]["inputs"]
    return str(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Completes all packages of a folder."""
    (folder,) = map(Path, sys.argv[1:] if arguments is None else arguments)
    for case in CASES:
        if (folder / case.name).is_dir():
            prepare(case, folder / case.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
