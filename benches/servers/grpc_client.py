"""Calls over gRPC, for measuring: one thread for each call in flight. Runs in pytriton's environment, which has gRPC and the
protocol. Arguments: the port, how many calls in flight, for how many seconds, and rounds, of
which the one with the lowest median is printed as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time

import numpy as np
import tritonclient.grpc as grpc
from client import A, B, C, SIDE


def measure(port: int, in_flight: int, seconds: float) -> dict[str, float]:
    given = []
    for name, data in (("A", A), ("B", B)):
        one = grpc.InferInput(name, [SIDE, SIDE], "FP32")
        one.set_data_from_numpy(np.frombuffer(data, np.float32).reshape(SIDE, SIDE))
        given.append(one)
    times: list[int] = []
    end = time.monotonic() + seconds

    def calls() -> None:
        with grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
            while time.monotonic() < end:
                began = time.perf_counter_ns()
                answer = client.infer("sgemm", given)
                took = time.perf_counter_ns() - began
                assert answer.as_numpy("C").tobytes() == C
                times.append(took)

    threads = [threading.Thread(target=calls) for _ in range(in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times.sort()
    at = lambda share: times[int(len(times) * share)] / 1e3
    return {"p50_us": at(0.5), "p99_us": at(0.99), "calls_per_s": len(times) / seconds, "calls": len(times)}


port, in_flight, seconds, rounds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
print(json.dumps(min((measure(port, in_flight, seconds) for _ in range(rounds)), key=lambda one: one["p50_us"])))
