"""Models whose calls run together, and one that keeps its state: ``python3 -m bench_models.together DIR --out FILE``.

ResNet-18 takes one picture a call: 32 calls in flight side by side, as its package says, against the same package without a
batch, and one call at a time of both. A transformer writes token by token, with what it remembers on the GPU: tokens of one
session, and of 64 in turn, beside the same step in PyTorch as a CUDA graph, whose caches lie on the GPU, too. Prints a table;
the file has everything.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pappus

from . import beside, serving
from .cases import named

PICTURES, STEP = "resnet18-any-fp16", "gpt-step-fp16"
# What the step's buffers that change are called.
STATE = ("place", "keys", "values")
IN_FLIGHT, SESSIONS = 32, 64
SECONDS, CALLS = 3, 1000
# Tokens whose scores are compared, and the file that has them.
FIRST, SCORES = 4, "scores.bin"
# What is asked of each figure: at least, at most.
TARGETS = {
    "batched / one by one, calls a second": (3.0, None),
    "batched / one by one, p99": (None, 2.0),
    "alone, with a batch / without": (None, 1.02),
    "step / PyTorch as a CUDA graph": (None, 1.1),
    "step of 64 sessions / of one": (None, 1.2),
    "step, scores from those in float32": (None, 2e-2),
}


def pictures(served: serving.Served, package: Path) -> dict[str, float]:
    """Calls that run together against the same that do not, in alternation."""
    document = json.loads((package / "function.json").read_text())
    (given,) = document["blueprint"]["inputs"]
    del document["blueprint"]["batch"]
    (package / "apart.json").write_text(json.dumps(document))
    served.run("function", "add", "together", str(package), "--replace")
    served.run("function", "add", "apart", str(package / "apart.json"), "--replace")
    data = f"--input={given}={package / 'input.bin'}"
    found: dict[str, list[float]] = {}
    for _ in range(3):
        for name in ("together", "apart"):
            load = ("--clients", str(IN_FLIGHT), "--duration", f"{SECONDS}s", "--warm-up", "1s")
            run = served.run("bench", name, data, *load)["runs"][0]["all"]
            alone = served.run("invoke", name, data, f"--output=output={package / 'output.bin'}", "--repeat", "300")["latency"]
            for what, value in (
                ("rate", run["per_second"]),
                ("p99", run["latency_ns"]["p99"]),
                ("alone", alone["round_trip_ns"]["p50"]),
            ):
                found.setdefault(f"{name}_{what}", []).append(value)
    return {what: float(np.median(values)) for what, values in found.items()}


@contextlib.contextmanager
def client(served: serving.Served) -> Iterator[pappus.Client]:
    """In this process, of the supervisor that the command speaks to."""
    with pappus.connect(served.command[2]) as connected:
        yield connected


def steps(served: serving.Served, package: Path) -> dict[str, float]:
    """Tokens of one session, and of many in turn; the scores of one are kept."""
    served.run("function", "add", "step", str(package), "--replace")
    given, token = package / "input.bin", np.fromfile(package / "input.bin", np.int64)
    # One session for each command.
    data = (f"--input=token={given}", f"--output=output={package / 'output.bin'}", "--repeat", str(CALLS))
    alone = [served.run("invoke", "step", *data)["latency"] for _ in range(3)][-1]
    with client(served) as connected, contextlib.ExitStack() as sessions:
        with connected.session("step") as one:
            np.stack([one(token) for _ in range(FIRST)]).tofile(package / SCORES)
        with connected.session("step") as one:
            in_python = timed(one, token, CALLS)
        many = [sessions.enter_context(connected.session("step")) for _ in range(SESSIONS)]
        for session in many:
            session(token)
        session = itertools.cycle(many)
        turns = timed(lambda token: next(session)(token), token, 10 * SESSIONS)
    return {
        "step": alone["round_trip_ns"]["p50"],
        "step_execution": alone["execute_ns"]["p50"],
        "step_python": in_python,
        "turn_python": turns,
    }


def timed(call: Any, token: Any, times: int) -> float:
    """The median time of a call, in nanoseconds."""
    found = []
    for _ in range(times):
        start = time.perf_counter_ns()
        call(token)
        found.append(time.perf_counter_ns() - start)
    return float(np.median(found[times // 4 :]))


def in_pytorch(package: Path) -> dict[str, float]:
    """The same step as a CUDA graph, input and output in pinned memory; and how far the scores are from those in float32."""
    case = named(STEP)
    model, example = case.model().cuda(), case.example()
    with torch.inference_mode():
        exact = case.model().float().cuda()
        right = torch.stack([exact(example.cuda()).cpu() for _ in range(FIRST)])
        scores = torch.from_numpy(np.fromfile(package / SCORES, np.float16)).reshape(right.shape)
        recorded = beside.Recorded(beside.Running(model, example))
        found = []
        for at in range(2 * CALLS):
            if at % CALLS == 0:
                for name, buffer in model.named_buffers():
                    if name.endswith(STATE):
                        buffer.zero_()
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            recorded()
            found.append(time.perf_counter_ns() - start)
    return {"graph": float(np.median(found[CALLS:])), "step_error": beside.mean(scores, right)}


def table(found: dict[str, float]) -> list[str]:
    """Ratios, as `pappus-bench` has them."""
    ratios = {
        "batched / one by one, calls a second": found["together_rate"] / found["apart_rate"],
        "batched / one by one, p99": found["together_p99"] / found["apart_p99"],
        "alone, with a batch / without": found["together_alone"] / found["apart_alone"],
        "step / PyTorch as a CUDA graph": found["step"] / found["graph"],
        "step of 64 sessions / of one": found["turn_python"] / found["step_python"],
        "step, scores from those in float32": found["step_error"],
    }
    lines = []
    for what, value in ratios.items():
        least, most = TARGETS[what]
        bound, is_met = (f"≥ {least:.2f}", value >= least) if least is not None else (f"≤ {most:.2f}", value <= (most or 0))
        lines.append(f"  {what:<60} {value:>10.3f} {bound:>10} {'ok' if is_met else 'missed'}")
    return [*(f"  {what:<60} {value:>14.4g}" for what, value in found.items()), *lines]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures both."""
    parser = argparse.ArgumentParser(prog="python3 -m bench_models.together", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--device", default="cuda:0", help="may have settings behind it")
    parser.add_argument("--programs", type=Path, default=Path("target/gpu"), help="where pappus and pappus-supervisor are")
    parser.add_argument("--out", type=Path, default=Path("target/gpu-models-together.json"), help="what was found")
    parser.add_argument("--log", type=Path, default=Path("target/gpu-models-together.log"), help="the supervisor's log")
    given = parser.parse_args(arguments)
    with serving.supervisor(given.programs, given.device, given.log) as served:
        found = pictures(served, given.folder / PICTURES) | steps(served, given.folder / STEP)
    found |= in_pytorch(given.folder / STEP)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
