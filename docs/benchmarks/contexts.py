"""What a CUDA context costs beside others: ``python3 docs/benchmarks/contexts.py [PROCESSES]`` on a machine with an NVIDIA GPU.

Processes make a context one after the other and stay. Of each: how many contexts there were before, and milliseconds for the driver's
start and for the context. It needs nothing but Python; the figures are in latest.md and history.md.
"""

import ctypes
import subprocess
import sys
import time


def check(result: int, what: str) -> None:
    if result != 0:
        raise SystemExit(f"{what}: error {result} of the driver")


def stay() -> None:
    """One of the processes: makes a context, says how long that took, and ends when its standard input does."""
    cuda = ctypes.CDLL("libcuda.so.1")
    begun = time.perf_counter()
    check(cuda.cuInit(0), "cuInit")
    started = time.perf_counter()
    context = ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    made = time.perf_counter()
    print(f"{1e3 * (started - begun):.0f} {1e3 * (made - started):.0f}", flush=True)
    sys.stdin.read()


def main(processes: int) -> None:
    there: list[subprocess.Popen[str]] = []
    print("contexts  cuInit  context")
    for before in range(processes):
        command = [sys.executable, __file__, "stay"]
        one = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        there.append(one)
        assert one.stdout is not None
        said = one.stdout.readline()
        if not said:
            raise SystemExit("a process made no context: its error is above")
        started, made = said.split()
        print(f"{before:8}{started:>8}{made:>9}", flush=True)
    for one in there:
        one.communicate()


if __name__ == "__main__":
    if sys.argv[1:] == ["stay"]:
        stay()
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 32)
