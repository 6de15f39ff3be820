"""What people would use in place of Pappus on a GPU: PyTorch, a process for each tenant, the GPU's time shared by the driver or by MPS.
Each process has the weights of its tenant, inputs and outputs in pinned memory, and nothing between it and the GPU.

    beside_torch.py contention --tenants 1,4,16 [--of NAME] [--mps] [--graphs]   answers a second, each tenant with one call in flight
    beside_torch.py crash --rate 50 [--mps] [--beside]               a tenant's calls, alone or beside one whose kernels fault

Prints one JSON object. A process that its GPU's error ended is started again, as a server would."""

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

WIDTH, ROWS = 512, 2048
WARM_UP_S, MEASURED_S, BESIDE_S = 0.5, 1.0, 6.0
# As late as an answer may be elsewhere in the evaluation.
LATEST_S = 2.0


class Chain(torch.nn.Module):
    """Three products of a matrix with weights, as the function `sgemm_chain` has them."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.rand(WIDTH, WIDTH) for _ in range(3))

    def forward(self, given):
        for weights in self.weights:
            given = given @ weights
        return given


class Complex(torch.nn.Module):
    """A product of complex numbers, as the function `cgemm` has it."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.rand(WIDTH, WIDTH, dtype=torch.complex64))

    def forward(self, given):
        return given @ self.weights


class Jacobi(torch.nn.Module):
    """A hundred steps of Jacobi's method, as the function `jacobi` has them."""

    def __init__(self):
        super().__init__()
        self.system = torch.nn.Parameter(torch.rand(WIDTH, WIDTH) + WIDTH * torch.eye(WIDTH))
        self.right = torch.nn.Parameter(torch.rand(WIDTH))

    def forward(self, given):
        diagonal = self.system.diagonal()
        for _ in range(100):
            given = given + (self.right - self.system @ given) / diagonal
        return given


# The functions of experiments: what does the same, and the shape and type of its input.
FUNCTIONS = {
    "sgemm_chain": (Chain, (ROWS, WIDTH), torch.float32),
    "cgemm": (Complex, (ROWS, WIDTH), torch.complex64),
    "jacobi": (Jacobi, (WIDTH,), torch.float32),
}


class Served:
    """What a function does, or a model of `bench_models`, with its input and output in pinned memory."""

    def __init__(self, of, graphs):
        if of in FUNCTIONS:
            network, shape, dtype = FUNCTIONS[of]
            model, given = network(), torch.rand(shape, dtype=dtype)
        else:
            sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
            from bench_models.cases import named

            model, given = named(of).model(), named(of).example()
        self.model = model.cuda()
        self.given = given.pin_memory()
        self.on_gpu = torch.empty_like(given, device="cuda")
        self.answer = self.model(self.given.cuda()).cpu().pin_memory()
        self.graph = None
        self()
        if graphs:
            beside = torch.cuda.Stream()
            with torch.cuda.stream(beside):
                self.launch()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.launch()

    def launch(self):
        self.on_gpu.copy_(self.given, non_blocking=True)
        self.answer.copy_(self.model(self.on_gpu), non_blocking=True)

    def __call__(self):
        if self.graph:
            self.graph.replay()
        else:
            self.launch()
        torch.cuda.synchronize()


@torch.no_grad()
def tenant(nth, of, graphs, barrier, rounds, answers):
    """Calls from barrier to barrier, in each round in which this tenant takes part."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    served = Served(of, graphs)
    for tenants in rounds:
        barrier.wait()
        count, latencies = 0, []
        begin = time.monotonic()
        while nth < tenants and (now := time.monotonic()) < begin + WARM_UP_S + MEASURED_S:
            served()
            if now >= begin + WARM_UP_S:
                count += 1
                latencies.append(time.monotonic() - now)
        barrier.wait()
        answers.put((tenants, count, latencies))


def contention(tenants, of, graphs):
    rounds = [int(count) for count in tenants.split(",")]
    most = max(rounds)
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(most, timeout=60), context.Queue()
    processes = [context.Process(target=tenant, args=(nth, of, graphs, barrier, rounds, answers), daemon=True) for nth in range(most)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=120) for _ in range(most * len(rounds))]
    for process in processes:
        process.join()
    for count in rounds:
        latencies = sorted(one for tenants, _, many in found if tenants == count for one in many)
        yield {
            "x": count,
            "answers_per_s": sum(answered for tenants, answered, _ in found if tenants == count) / MEASURED_S,
            "p50_ms": 1000 * latencies[len(latencies) // 2],
            "p99_ms": 1000 * latencies[len(latencies) * 99 // 100],
        }


@torch.no_grad()
def honest(rate, ready, answered):
    """Calls that are due at a rate; each that is answered in time is told with its latency, until an error ends the process."""
    served = Served("sgemm_chain", False)
    ready.set()
    due = time.monotonic()
    while True:
        due = max(due + 1 / rate, time.monotonic() - LATEST_S)
        time.sleep(max(0, due - time.monotonic()))
        served()
        answered.put(time.monotonic() - due)


class Far:
    """An array that says that it is far larger than the memory it is in."""

    def __init__(self):
        self.memory = torch.zeros(16, device="cuda")
        self.__cuda_array_interface__ = {
            "data": (self.memory.data_ptr(), False),
            "shape": (1 << 34,),
            "typestr": "<f4",
            "version": 3,
        }


def faulting():
    """Reaches outside of its memory."""
    print(torch.as_tensor(Far(), device="cuda")[-1].item())


def crash(rate, beside):
    context = multiprocessing.get_context("fork")
    answered, ready = context.SimpleQueue(), context.Event()

    def start(target, *arguments):
        process = context.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
        tenants = start(honest, rate, ready, answered)
        ready.wait(120)
        neighbour = start(faulting) if beside else None
        faults = restarts = 0
        latencies, begin = [], time.monotonic()
        while time.monotonic() < begin + BESIDE_S:
            if neighbour and not neighbour.is_alive():
                faults += 1
                neighbour = start(faulting)
            if not tenants.is_alive():
                restarts += 1
                tenants = start(honest, rate, ready, answered)
            while not answered.empty():
                latencies.append(answered.get())
            time.sleep(0.005)
        measured = time.monotonic() - begin
        for process in filter(None, (tenants, neighbour)):
            process.kill()
            process.join()
    due = rate * measured
    latencies.sort()
    return {
        "p50_ms": 1000 * latencies[len(latencies) // 2] if latencies else None,
        "p99_ms": 1000 * latencies[len(latencies) * 99 // 100] if latencies else None,
        "answers_per_s": len(latencies) / measured,
        "failed_percent": max(0.0, 100 * (1 - len(latencies) / due)),
        "faults": faults,
        "restarts": restarts,
    }


@contextlib.contextmanager
def mps():
    """An MPS daemon of this run's own, whose clients are the processes that begin meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        os.environ |= own
        for path in own.values():
            os.mkdir(path)
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit -t 1\n", text=True, check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["contention", "crash"])
    parser.add_argument("--tenants", default="1,4,16")
    parser.add_argument("--of", metavar="NAME", default="sgemm_chain", help="a function of the experiments, or a model of python/bench_models")
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--beside", action="store_true")
    asked = parser.parse_args()
    with mps() if asked.mps else contextlib.nullcontext():
        found = list(contention(asked.tenants, asked.of, asked.graphs)) if asked.what == "contention" else crash(asked.rate, asked.beside)
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
