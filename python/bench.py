"""Round trips of calls with 4 KiB arrays, of this client and of the Rust one, in turn, against one supervisor on the CPU.

    PAPPUS_BIN_DIR=target/release PYTHONPATH=python/src python3 python/bench.py [--calls N] [--rounds N]

The programs are those of a release build. Rust's figures are those that `pappus invoke --repeat` shows: inputs and outputs
lie in an arena, as here. Rounds are short and many, and of each client the round with the lowest median is shown: the one that
other programs of the machine disturbed least.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import pappus
import pappus.aio

REPOSITORY = Path(__file__).resolve().parents[1]
PROGRAMS = Path(os.environ.get("PAPPUS_BIN_DIR", REPOSITORY / "target/release"))
ELEMENTS = 1024

Measure = Callable[[int], tuple[float, float]]


def quantiles(round_trips: list[int]) -> tuple[float, float]:
    """p50 and p99 in microseconds."""
    ordered = sorted(round_trips)
    return ordered[len(ordered) // 2] / 1e3, ordered[len(ordered) * 99 // 100] / 1e3


def timed(call: Callable[[], object], calls: int) -> tuple[float, float]:
    """Calls one after the other."""
    found = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        found.append(time.perf_counter_ns() - start)
    return quantiles(found)


def rust(socket: str, folder: Path) -> Measure:
    """`pappus invoke --repeat`."""
    for name in "AB":
        np.ones(ELEMENTS, np.float32).tofile(folder / f"{name}.bin")
    given = [f"--input={name}={folder}/{name}.bin" for name in "AB"]

    def measure(calls: int) -> tuple[float, float]:
        command = [PROGRAMS / "pappus", "--socket", socket, "invoke", "vec_add", *given, "--json", "--output"]
        ran = subprocess.run([*command, f"C={folder}/C.bin", "--repeat", str(calls)], capture_output=True, check=True)
        latency = json.loads(ran.stdout)["latency"]["round_trip_ns"]
        return latency["p50"] / 1e3, latency["p99"] / 1e3

    return measure


def asynchronous(socket: str) -> Measure:
    """The client for asyncio."""

    async def main(calls: int) -> tuple[float, float]:
        values = np.ones(ELEMENTS, np.float32)
        found = []
        async with await pappus.aio.connect(socket) as client:
            vec_add = await client.function("vec_add")
            for _ in range(calls):
                start = time.perf_counter_ns()
                await vec_add(values, values)
                found.append(time.perf_counter_ns() - start)
        return quantiles(found)

    return lambda calls: asyncio.run(main(calls))


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pappus-") as name:
        folder, socket = Path(name), f"{name}/socket"
        flags = ["--socket", socket, "--state-dir", f"{name}/state", "--device", "cpu:workers=1,memory=64MiB"]
        with (folder / "log").open("wb") as log:
            supervisor = subprocess.Popen([PROGRAMS / "pappus-supervisor", *flags], stdout=log, stderr=log)
        try:
            with pappus.connect(socket, patience=60) as client:
                vec_add = client.add_function("vec_add", REPOSITORY / "kernels/configs/vec_add.json")
                values = np.ones(ELEMENTS, np.float32)
                arena = client.arena(1 << 20)
                there = arena.array(values)
                in_place = vec_add.options(out=arena.empty(ELEMENTS))
                lending = vec_add.options(copy=False)
                ways: dict[str, Measure] = {
                    "pappus invoke --repeat": rust(socket, folder),
                    "vec_add(a, b)": lambda calls: timed(lambda: vec_add(values, values), calls),
                    "… copy=False": lambda calls: timed(lambda: lending(values, values), calls),
                    "… in an arena": lambda calls: timed(lambda: in_place(there, there), calls),
                    "pappus.aio": asynchronous(socket),
                }
                found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
                for _ in range(arguments.rounds):
                    for way, measure in ways.items():
                        found[way].append(measure(arguments.calls))
        finally:
            supervisor.kill()
            supervisor.wait()
    best = {way: min(rounds) for way, rounds in found.items()}
    base, _ = next(iter(best.values()))
    print("| round trip, 2 x 4 KiB in, 4 KiB out | p50 | p99 | p50 / Rust's |\n|---|---|---|---|")
    for way, (p50, p99) in best.items():
        print(f"| `{way}` | {p50:.1f} µs | {p99:.1f} µs | {p50 / base:.2f} |")


if __name__ == "__main__":
    main()
