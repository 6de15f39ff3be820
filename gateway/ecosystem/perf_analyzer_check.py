"""Has the unmodified perf_analyzer measure a function through a gateway, in each way that it can send tensors; PERF_ANALYZER is its folder."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from served import TOKEN, served

FOLDER = Path(os.environ["PERF_ANALYZER"])
LIBRARIES = FOLDER / "libc/usr/lib/x86_64-linux-gnu"
CUDA = FOLDER / "nvidia/cuda_runtime/lib"


def command() -> list[str | Path]:
    """The program, by the C library that it needs."""
    program = FOLDER / "perf_analyzer/bin/perf_analyzer"
    if not LIBRARIES.exists():
        return ["env", f"LD_LIBRARY_PATH={CUDA}", program]
    # The rest of what it needs is this machine's.
    path = f"{LIBRARIES}:/usr/lib/x86_64-linux-gnu:{CUDA}"
    return [LIBRARIES / "ld-linux-x86-64.so.2", "--library-path", path, program]


def measure(addresses: dict[str, str], protocol: str, memory: str) -> None:
    """Four hundred inferences, four at a time, all of which succeed."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder, "figures.csv")
        ran = subprocess.run([
            *command(), "-m", "vec_add", "-u", addresses["gRPC" if protocol == "grpc" else "HTTP"], "-i", protocol,
            "-H", f"authorization:Bearer {TOKEN}", "--shape", "A:256", "--shape", "B:256", "--shared-memory", memory,
            "--output-shared-memory-size", "4096", "--concurrency-range", "4", "--request-count", "400", "-f", figures,
        ], capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, f"{protocol}, {memory}:\n{ran.stdout}\n{ran.stderr}"
        assert "WARNING" not in ran.stdout and "rror" not in ran.stdout, ran.stdout
        [row] = csv.DictReader(figures.open())
        assert float(row["Inferences/Second"]) > 0, row


def main() -> None:
    with served() as addresses:
        for protocol in ("http", "grpc"):
            for memory in ("none", "system"):
                measure(addresses, protocol, memory)
    print("perf_analyzer over HTTP and gRPC, with bytes and in shared memory: as it should be")


if __name__ == "__main__":
    sys.exit(main())
