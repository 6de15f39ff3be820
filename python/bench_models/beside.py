"""A model in PyTorch, in a process of its own: ``python3 -m bench_models.beside CASE DIR [--compile]``.

Prints one JSON object: the median latency of eager PyTorch, also as a CUDA graph, or of ``torch.compile`` with CUDA graphs
and Triton's kernels, with input and output in pinned memory of the host, as Pappus' arenas are; and how far its results, and
those that Pappus left beside the package, are from what is right.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .cases import Case, named
from .prepare import OUTPUT

# Seconds: until clocks have risen and libraries have chosen; then measured.
WARM_UP, MEASURED = 0.7, 1.5


def largest(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest value: what fp32 is judged by."""
    return float((found.double() - wanted.double()).abs().max() / wanted.double().abs().max())


def mean(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The root of the mean square of differences, relative to that of values: what shorter types are judged by."""
    return float((found.double() - wanted.double()).pow(2).mean().sqrt() / wanted.double().pow(2).mean().sqrt())


def left(file: Path, like: torch.Tensor) -> torch.Tensor:
    """An output that Pappus wrote, which has the type and shape of PyTorch's."""
    content = bytearray(file.read_bytes())
    if len(content) != like.numel() * like.element_size():
        raise SystemExit(f"{file} has {len(content)} bytes, PyTorch's output has {like.numel() * like.element_size()}")
    return torch.frombuffer(content, dtype=like.dtype).reshape(like.shape)


def timed(call: Callable[[], Any]) -> float:
    """The median time of a call in nanoseconds."""
    found: list[int] = []
    begin = time.monotonic()
    while (now := time.monotonic()) < begin + WARM_UP + MEASURED or len(found) < 10:
        start = time.perf_counter_ns()
        call()
        if now >= begin + WARM_UP:
            found.append(time.perf_counter_ns() - start)
    return float(sorted(found)[len(found) // 2])


class Running:
    """A model on the GPU with input and output in pinned memory."""

    def __init__(self, model: Callable[[torch.Tensor], torch.Tensor], example: torch.Tensor, graphs: bool = False) -> None:
        self.model = model
        self.host_input = example.pin_memory()
        self.input = torch.empty_like(example, device="cuda")
        if graphs:
            # So that a graph reads it where it is.
            torch._dynamo.mark_static_address(self.input)
        self.output = torch.empty_like(self._compute(), device="cpu").pin_memory()

    def __call__(self) -> torch.Tensor:
        """Input to the GPU, model, output back; complete when it returns."""
        self.launch()
        torch.cuda.synchronize()
        return self.output

    def launch(self) -> None:
        """As a call, but nothing is waited for."""
        self.output.copy_(self._compute(), non_blocking=True)

    def _compute(self) -> torch.Tensor:
        self.input.copy_(self.host_input, non_blocking=True)
        return self.model(self.input)


def graph(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """What a call launches, recorded once it has run."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        call()
    return recorded


class Recorded:
    """A model that is running, its kernels replayed as a CUDA graph."""

    def __init__(self, running: Running) -> None:
        self.graph = graph(running.launch)

    def __call__(self) -> None:
        """As the model is called, complete when it returns."""
        self.graph.replay()
        torch.cuda.synchronize()


def measure(case: Case, output: Path, with_compile: bool) -> dict[str, float]:
    """Eager PyTorch and Pappus' result, or torch.compile; the GPU is free otherwise."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model, example = case.model().cuda(), case.example()
    plain = case.dtype == torch.float32
    error = largest if plain else mean
    eager = Running(model, example)
    with torch.inference_mode():
        by_eager = eager().clone()
        # What is right: eager PyTorch; of shorter types, eager PyTorch in fp32 with the same weights.
        wanted = by_eager
        if not plain:
            exact = case.model().float().cuda()
            wanted = Running(exact, example if case.words else example.float())().clone()
            del exact
    if with_compile:
        return _compiled(model, example, wanted, error)
    found = {} if plain else {"eager_error": error(by_eager, wanted)}
    if output.is_file():
        found["pappus_error"] = error(left(output, by_eager), wanted)
    with torch.inference_mode():
        found["eager_ns"] = timed(eager)
        with _cudnn_benchmark():
            found["eager_benchmark_ns"] = timed(eager)
            found["graph_ns"] = timed(Recorded(eager))
    return found


@contextlib.contextmanager
def _cudnn_benchmark() -> Any:
    """Has cuDNN try its algorithms instead of guess."""
    torch.backends.cudnn.benchmark = True
    yield
    torch.backends.cudnn.benchmark = False


def _compiled(model: Any, example: torch.Tensor, wanted: torch.Tensor, error: Any) -> dict[str, float]:
    """``torch.compile`` with the kernels that packages have: Triton's, also for attention."""
    from torch._inductor import config
    from torch.nn.attention import SDPBackend, sdpa_kernel

    config.max_autotune_gemm_backends = "TRITON"
    config.max_autotune_conv_backends = "TRITON"
    start = time.monotonic()
    with sdpa_kernel(SDPBackend.MATH):
        compiled = torch.compile(model, mode="max-autotune", dynamic=False)
        running = Running(compiled, example, graphs=True)
        running()
        compile_s = time.monotonic() - start
        return {"compiled_ns": timed(running), "compiled_error": error(running(), wanted), "compile_s": compile_s}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures one model."""
    parser = argparse.ArgumentParser(prog="python3 -m bench_models.beside", description=__doc__)
    parser.add_argument("case", type=named)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the packages are")
    parser.add_argument("--compile", action="store_true", help="torch.compile in the place of eager: minutes")
    given = parser.parse_args(arguments)
    with torch.no_grad():
        found = measure(given.case, given.folder / given.case.name / OUTPUT, given.compile)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
