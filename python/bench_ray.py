"""What Ray adds to a call, and what more nodes give: nodes of Ray on this machine, each with a supervisor on the CPU device.

    PAPPUS_BIN_DIR=target/release PYTHONPATH=python/src:python/tests:python/tests_ray python3 python/bench_ray.py [--nodes N]

Kernels of the throughput part take some 20 ms of one processor; no more nodes pay than there are processors.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pappus
import pappus.ray
from fixture import KERNELS, VEC_ADD
from machines import Machines

SIDE = 64


def p50(call: Callable[[], object], calls: int) -> float:
    """Microseconds of calls one after the other."""
    found = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        found.append(time.perf_counter_ns() - start)
    return statistics.median(found) / 1e3


def steps_of(milliseconds: float, function: Any, inputs: dict[str, Any]) -> int:
    """How many steps take so long."""
    probe = 400
    call = function.submit(steps=probe, **inputs)
    call.result()
    call = function.submit(steps=probe, **inputs)
    return max(1, int(probe * milliseconds * 1e6 / call.timings().execute_ns))


def throughput(function: pappus.ray.ClusterFunction, steps: int, inputs: dict[str, Any], calls: int) -> float:
    """Calls a second, all of them in flight at once."""
    start = time.perf_counter()
    for future in [function.submit(steps=steps, **inputs) for _ in range(calls)]:
        future.result()
    return calls / (time.perf_counter() - start)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    arguments = parser.parse_args()
    one = np.ones(SIDE, np.float32)
    inputs = {"A": np.eye(SIDE, dtype=np.float32), "b": one, "x": one}
    small, large = np.ones(1024, np.float32), np.ones(1 << 20, np.float32)
    machines = Machines()
    try:
        first = machines.add(labels={"bench": "one"})
        with machines.supervisor(first).connect() as client, pappus.ray.connect() as cluster:
            direct, through = client.add_function("vec_add", VEC_ADD), cluster.add_function("vec_add", VEC_ADD)
            for name, values, calls in (("4 KiB", small, 500), ("4 MiB", large, 50)):
                through(values, values)
                socket = p50(lambda v=values: direct(v, v), calls)
                actor = p50(lambda v=values: through(v, v), calls)
                print(f"| vec_add, arrays of {name}, p50: socket; actor | {socket:.0f} µs; {actor:.0f} µs |")
            function = client.add_function("jacobi", KERNELS / "configs/jacobi.json")
            steps = steps_of(20, function, inputs)
        for _ in range(arguments.nodes - 1):
            machines.add()
        rates = []
        for labels in ({"bench": "one"}, {}):
            with pappus.ray.connect(labels=labels) as cluster:
                jacobi = cluster.add_function("jacobi", KERNELS / "configs/jacobi.json")
                count = len(cluster.nodes())
                throughput(jacobi, steps, inputs, 8 * count)
                rates.append(throughput(jacobi, steps, inputs, 50 * count))
                print(f"| calls of 20 ms, {count} nodes | {rates[-1]:.0f}/s |")
        print(f"| more / one, on {os.cpu_count()} processors | {rates[1] / rates[0]:.2f} |")
    finally:
        machines.stop()


if __name__ == "__main__":
    main()
