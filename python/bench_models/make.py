"""Packages the models, on a machine without a GPU: ``python -m bench_models.make DIR``.

Weights stay behind: they are random, and :mod:`.prepare` writes the same ones where the packages are used. So a folder of
packages is small enough to be carried anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from pappus import package

from .cases import CASES, Case
from .operations import OPERATIONS
from .prepare import ORDERS


def make(
    case: Case,
    target: Path,
    *,
    arch: str = "sm_90",
    candidates: int = 0,
    tuning: Path | None = None,
    tuned_for: str | None = None,
    float32: str | None = None,
) -> None:
    """Writes a model's package into a folder, without its weights."""
    model = case.model()
    built = package.torch(
        model,
        **case.free(),
        targets=[arch],
        candidates=candidates,
        tuning=tuning,
        tuned_for=tuned_for,
        float32=float32,
        ptx=True,
    )
    # What is no parameter of the model, such as a constant that the export found, cannot be written again from it.
    kept = {name: weight for name, weight in built.weights.items() if name not in model.state_dict()}
    replace(built, weights=kept).save(target / case.name, overwrite=True)
    (target / case.name / ORDERS).write_text(json.dumps(built.plan.orders))


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes those asked for, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench_models.make", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--arch", default="sm_90", help="what machine code is made for (sm_90)")
    parser.add_argument("--candidates", type=int, default=0, metavar="N", help="how many of each operation go with them (0)")
    parser.add_argument("--tuning", type=Path, metavar="FILE", help="a table of measurements whose fastest ones are taken")
    parser.add_argument("--tuned-for", metavar="GPU", help="the GPU measured on, where the table has several")
    parser.add_argument("--float32", metavar="HOW", help="how float32 is multiplied: ieee, tf32, tf32x3 (tf32x3)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this model; may be repeated")
    given = parser.parse_args(arguments)
    # Results are compared with those of plain fp32.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    for case in (*CASES, *OPERATIONS):
        # Single operations are made by name only.
        if case.name not in given.only and (given.only or case in OPERATIONS):
            continue
        start = time.monotonic()
        make(
            case,
            given.folder,
            arch=given.arch,
            candidates=given.candidates,
            tuning=given.tuning,
            tuned_for=given.tuned_for,
            float32=given.float32,
        )
        print(f"{case.name}: {time.monotonic() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
