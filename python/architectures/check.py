"""Packages the architectures of the list, or those named, and prints what became of each: ``python3 -m architectures.check``.

Each is packaged for ``sm_90`` in a process of its own, with nothing cached, and in another one again, which also runs the
package on the processor and compares with eager PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .architecture import Architecture
from .zoo import ARCHITECTURES, named

# Seconds: of a process that packages, and of the package's results on the processor, unless said otherwise.
LIMIT, INTERPRETED = 180, 60
# What results may differ by, relative to the largest value.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3}
# Seconds that packaging should take, with nothing cached and again.
COLD, AGAIN = 60, 10


def run(architecture: Architecture, caches: Path, interpret: int) -> dict[str, Any]:
    """What the process says that packages it; why there is nothing, where it ends otherwise."""
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        # No library asks its hub for anything.
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "architectures.one", architecture.name, "--interpret", str(interpret)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=LIMIT + 2 * interpret, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"it took longer than {LIMIT} s"}
    if done.returncode:
        return {"failed": done.stderr.strip().rpartition("\n")[2]}
    said: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return said


def check(architecture: Architecture, again: bool = True, interpret: int = INTERPRETED) -> dict[str, Any]:
    """What became of one, perhaps without packaging it again, or without running the package."""
    with tempfile.TemporaryDirectory() as folder:
        first = run(architecture, Path(folder), 0 if again else interpret)
        found = {"name": architecture.name, "dtype": str(architecture.dtype).removeprefix("torch.")} | first
        if "seconds" not in first:
            return found
        second = run(architecture, Path(folder), interpret) if again else {}
    found = found | second | {"cold": first["seconds"], "again": second.get("seconds")}
    found.pop("seconds", None)
    return found


def faults(found: Mapping[str, Any]) -> list[str]:
    """What is not as it should be."""
    if "cold" not in found:
        # Where a library lies is of no interest.
        return [re.sub(r"/\S*/site-packages/", "", found.get("failed") or found["refused"])]
    told = [found["failed"]] if "failed" in found else []
    tolerance = TOLERANCES[getattr(torch, found["dtype"])]
    if found.get("error", 0.0) > tolerance:
        told.append(f"the error is above {tolerance:g}")
    # Results that hardly depend on inputs would agree whatever is computed.
    if "change" in found and found["change"] < 10 * tolerance:
        told.append(f"other inputs change results by {found['change']:.1g} alone")
    if found["cold"] > COLD:
        told.append(f"packaging takes longer than {COLD} s")
    if (found.get("again") or 0) > AGAIN:
        told.append(f"packaging again takes longer than {AGAIN} s")
    return told


def line(found: Mapping[str, Any]) -> str:
    """One row of the table."""
    if "cold" not in found:
        numbers = ["", "", "", "", ""]
    else:
        again = found.get("again")
        numbers = [f"{found['cold']:.0f}", "" if again is None else f"{again:.0f}", str(found["kernels"]), str(found["steps"])]
        numbers.append(f"{found['error']:.1e}" if "error" in found else "later" if found.get("late") else "")
    dtype = "" if found["dtype"] == "float32" else f" ({found['dtype']})"
    told = "; ".join(faults(found)).replace("\n", " ").replace("|", "\\|")
    return f"| {found['name']}{dtype} | {' | '.join(numbers)} | {told} |"


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """All of them, and how many were packaged."""
    made = [found for found in results if "cold" in found]
    head = ["| architecture | s cold | s again | kernels | steps | error | |", "|---|---|---|---|---|---|---|"]
    return "\n".join([f"{len(made)} of {len(results)} are packaged.", "", *head, *(line(found) for found in results)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Packages those named, or all; 1 where one that was packaged is not as it should be."""
    parser = argparse.ArgumentParser(prog="python3 -m architectures.check", description=__doc__)
    parser.add_argument("architectures", nargs="*", type=named, metavar="NAME", help="without one, all")
    parser.add_argument("--once", action="store_true", help="each is packaged with nothing cached alone")
    parser.add_argument("--interpret", type=int, default=INTERPRETED, metavar="SECONDS", help="how long results may take (60)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON of what was found; of others, what is there stays")
    parser.add_argument("--page", type=Path, metavar="FILE", help="the table of all that is in FILE, in Markdown")
    given = parser.parse_args(arguments)
    kept = json.loads(given.out.read_text()) if given.out and given.out.is_file() else []
    results: dict[str, Any] = {found["name"]: found for found in kept}
    for architecture in given.architectures or ARCHITECTURES:
        found = check(architecture, not given.once, given.interpret)
        results[architecture.name] = found
        print(line(found), flush=True)
        if given.out:
            # After each, so that what is known stays if this is ended.
            given.out.write_text(json.dumps(list(results.values()), indent=1) + "\n")
    listed = [results[each.name] for each in ARCHITECTURES if each.name in results]
    if given.page:
        given.page.write_text(table(listed) + "\n")
    print(table(listed).partition("\n")[0])
    return int(any(faults(found) for found in listed if "cold" in found))


if __name__ == "__main__":
    sys.exit(main())
