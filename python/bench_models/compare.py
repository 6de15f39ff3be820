"""Results and latencies of all models beside PyTorch: ``python3 -m bench_models.compare DIR --device cuda:0 --out FILE``.

Pappus serves them with default settings, is called by `pappus invoke`, and is gone when PyTorch runs, each model in a
process of its own. Prints a line for each model; the file has everything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import serving

# As in `prepare`, which needs PyTorch: this process does not.
INPUT, OUTPUT = "input.bin", "output.bin"


def called(served: serving.Served, package: Path, calls: int) -> dict[str, Any]:
    """Registers a package and calls it; its output stays beside it."""
    blueprint = json.loads((package / "function.json").read_text())["blueprint"]
    (given,), (wanted,) = blueprint["inputs"], blueprint["outputs"]
    served.run("function", "add", package.name, str(package), "--replace")
    data = [f"--input={given}={package / INPUT}", f"--output={wanted}={package / OUTPUT}"]
    # Until every lane has its graph, and clocks have risen.
    served.run("invoke", package.name, *data, "--repeat", str(max(calls // 4, 50)))
    latency = served.run("invoke", package.name, *data, "--repeat", str(calls))["latency"]
    return {
        "pappus_ns": latency["round_trip_ns"]["p50"],
        "pappus_p99_ns": latency["round_trip_ns"]["p99"],
        "pappus_device_ns": latency["execute_ns"]["p50"],
    }


def beside(case: str, folder: Path, with_compile: bool, limit: float) -> dict[str, Any]:
    """What a process with PyTorch measured of a model; what went wrong, where it did."""
    command = [sys.executable, "-m", "bench_models.beside", case, str(folder), *(["--compile"] if with_compile else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"PyTorch took longer than {limit:.0f} s"}
    if done.returncode != 0:
        return {"failed": done.stderr.strip()[-2000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares the models that have packages in a folder."""
    parser = argparse.ArgumentParser(prog="python3 -m bench_models.compare", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--device", default="cuda:0", help="may have settings behind it")
    parser.add_argument("--programs", type=Path, default=Path("target/gpu"), help="where pappus and pappus-supervisor are")
    parser.add_argument("--calls", type=int, default=1000, metavar="N", help="calls of each model (1000)")
    parser.add_argument("--compile", action="append", default=[], metavar="CASE", help="torch.compile of this one, or all")
    parser.add_argument("--limit", type=float, default=150, metavar="SECONDS", help="for each model in PyTorch (150)")
    parser.add_argument("--out", type=Path, default=Path("target/gpu-models.json"), help="what was found")
    parser.add_argument("--log", type=Path, default=Path("target/gpu-models.log"), help="the supervisor's log")
    given = parser.parse_args(arguments)
    packages = sorted(path.parent for path in given.folder.glob(f"*/{INPUT}"))
    found: dict[str, dict[str, Any]] = {package.name: {} for package in packages}
    with serving.supervisor(given.programs, given.device, given.log) as served:
        for package in packages:
            try:
                found[package.name] = called(served, package, given.calls)
            except RuntimeError as error:
                found[package.name] = {"failed": str(error)}
            print(f"{package.name} {json.dumps(found[package.name])}", flush=True)
            given.out.write_text(json.dumps(found, indent=1) + "\n")
    for package in packages:
        row = found[package.name]
        with_compile = "all" in given.compile or package.name in given.compile
        told = beside(package.name, given.folder, with_compile, given.limit)
        if "failed" in row and "failed" in told:
            told["failed"] = f"{row['failed']}; {told['failed']}"
        row |= told
        print(f"{package.name} {json.dumps(row)}", flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if any("failed" in row for row in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
