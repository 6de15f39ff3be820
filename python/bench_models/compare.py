"""Results and latencies of all models beside PyTorch: ``python3 -m bench_models.compare DIR --device cuda:0 --out FILE``.

Pappus serves them with default settings, is called by `pappus invoke`, and is gone when PyTorch runs, each model in a
process of its own. What takes longest comes last, and the file is written after every step: a run that is ended early
leaves what it found. Prints a line for each step; the file has everything.
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
# What matters most.
FIRST = ("resnet18-1-fp32", "resnet18-8-fp32", "gpt-bf16", "gpt-fp32")


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


def order(package: Path) -> tuple[int, str]:
    """What packages are sorted by."""
    return (FIRST.index(package.name) if package.name in FIRST else len(FIRST), package.name)


def beside(case: str, folder: Path, *flags: str, limit: float) -> dict[str, Any]:
    """What a process with PyTorch measured of a model; what went wrong, where it did."""
    command = [sys.executable, "-m", "bench_models.beside", case, str(folder), *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"PyTorch took longer than {limit:.0f} s"}
    if done.returncode != 0:
        return {"failed": done.stderr.strip()[-2000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def keeps_state(package: Path) -> bool:
    """True if its calls are in a session."""
    return "state" in json.loads((package / "function.json").read_text())["blueprint"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares the models that have packages in a folder."""
    parser = argparse.ArgumentParser(prog="python3 -m bench_models.compare", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--device", default="cuda:0", help="may have settings behind it")
    parser.add_argument("--programs", type=Path, default=Path("target/gpu"), help="where pappus and pappus-supervisor are")
    parser.add_argument("--calls", type=int, default=1000, metavar="N", help="calls of each model (1000)")
    parser.add_argument("--compile", action="append", default=[], metavar="CASE", help="torch.compile of this one, or all")
    parser.add_argument("--limit", type=float, default=90, metavar="SECONDS", help="for each model in eager PyTorch (90)")
    parser.add_argument("--compile-limit", type=float, default=240, metavar="SECONDS", help="for each torch.compile (240)")
    parser.add_argument("--out", type=Path, default=Path("target/gpu-models.json"), help="what was found")
    parser.add_argument("--log", type=Path, default=Path("target/gpu-models.log"), help="the supervisor's log")
    given = parser.parse_args(arguments)
    found_here = (path.parent for path in given.folder.glob(f"*/{INPUT}"))
    # A state would be full after so many calls: `together` measures those.
    packages = sorted((package for package in found_here if not keeps_state(package)), key=order)
    found: dict[str, dict[str, Any]] = {package.name: {} for package in packages}

    def tell(name: str, told: dict[str, Any]) -> None:
        if "failed" in told and "failed" in found[name]:
            told["failed"] = f"{found[name]['failed']}; {told['failed']}"
        found[name] |= told
        print(f"{name} {json.dumps(told)}", flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")

    with serving.supervisor(given.programs, given.device, given.log) as served:
        for package in packages:
            try:
                tell(package.name, called(served, package, given.calls))
            except RuntimeError as error:
                tell(package.name, {"failed": str(error)})
    for package in packages:
        tell(package.name, beside(package.name, given.folder, limit=given.limit))
    for package in packages:
        if "all" in given.compile or package.name in given.compile:
            told = beside(package.name, given.folder, "--compile", limit=given.compile_limit)
            # That PyTorch could not, or not in time, is no failure of the package.
            tell(package.name, {"compile_failed": told["failed"]} if "failed" in told else told)
    return 1 if any("failed" in row for row in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
