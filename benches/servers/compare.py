"""The same service, C = A B of 128 x 128 numbers, by Pappus behind its gateway and by servers that people use, one after the other on this
machine. scripts/compare-servers makes the environments and calls this with `--with NAME=PYTHON` for each."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import client

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
BIN = Path(os.environ["PAPPUS_BIN_DIR"])
PACKAGES = {"ray": "ray", "litserve": "litserve", "bentoml": "bentoml", "pytriton": "nvidia-pytriton"}
# One processor for the product, as the CPU device has one worker.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "BENTOML_DO_NOT_TRACK": "1", "NO_COLOR": "1"}


def free_ports(count: int) -> int:
    """The first of that many neighbours that nobody listens on."""
    for port in range(18000, 19000, count):
        held = []
        try:
            for one in range(port, port + count):
                held.append(socket.create_server(("127.0.0.1", one)))
            return port
        except OSError:
            pass
        finally:
            for one in held:
                one.close()
    raise SystemExit("no ports are free")


def until_answered(port: int, request: bytes, process: subprocess.Popen, log: Path) -> None:
    """A server that is being started refuses connections or requests. It is asked until its first right answer."""
    end, why = time.monotonic() + 60, "nothing"
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"it ended with {process.returncode}: {tail(log)}")
        try:
            connection = client.Connection(port)
            connection.send(request)
            while connection.receive() is None:
                pass
            return
        except OSError as error:
            why = str(error)
            time.sleep(0.2)
    raise RuntimeError(f"no answer in 60 s, at last: {why}; its log: {tail(log)}")


def tail(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split())[-600:]


@contextmanager
def foreign(name: str, python: str) -> Iterator[tuple[int, int | None, bytes]]:
    """Ports of HTTP and gRPC, and the request."""
    with tempfile.TemporaryDirectory() as folder:
        port, log = free_ports(2), Path(folder, "log")
        request = {"ray": client.plain, "litserve": client.form, "bentoml": client.form,
                   "pytriton": lambda: client.tensors("sgemm")}[name]()
        with log.open("wb") as out:
            server = [HERE / f"{name}_server.py", str(port)]
            if name == "bentoml":
                server = ["-m", "bentoml", "serve", "bentoml_server:Matmul", "--working-dir", HERE, "--host", "127.0.0.1", "--port", str(port)]
            process = subprocess.Popen([python, *server], stdout=out, stderr=out, start_new_session=True, cwd=folder, env=ENVIRONMENT)
        try:
            until_answered(port, request, process, log)
            yield port, port + 1 if name == "pytriton" else None, request
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                pass
            # What it started and left.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


@contextmanager
def pappus(workers: int) -> Iterator[tuple[int, int, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        port, log, path = free_ports(2), Path(folder, "log"), Path(folder, "socket")
        request, running = client.tensors("sgemm"), []
        with log.open("wb") as out:
            start = lambda *arguments: running.append(
                subprocess.Popen([str(one) for one in arguments], stdout=out, stderr=out, env=ENVIRONMENT))
            try:
                start(BIN / "pappus-supervisor", "--socket", path, "--state-dir", Path(folder, "state"),
                      "--device", f"cpu:workers={workers},memory=256MiB")
                add = [BIN / "pappus", "--socket", path, "--patience", "60s", "function", "add", "sgemm"]
                subprocess.run([*add, REPOSITORY / "kernels/configs/sgemm.json"], check=True, stdout=out)
                start(BIN / "pappus-gateway", "--socket", path, "--own-tenant", "--http", f"127.0.0.1:{port}",
                      "--grpc", f"127.0.0.1:{port + 1}")
                until_answered(port, request, running[-1], log)
                yield port, port + 1, request
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/sgemm/stats") as answer:
                    inner = json.load(answer)["model_stats"][0]["inference_stats"]["compute_infer"]
                print(f"Pappus: the product alone, mean of all calls: {inner['ns'] / inner['count'] / 1e3:.0f} µs")
            finally:
                for process in reversed(running):
                    process.terminate()
                    process.wait()


def version(name: str, python: str) -> str:
    code = f"import importlib.metadata as m; print(m.version('{PACKAGES[name]}'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def figures(served, grpc_python: str | None, seconds: float, rounds: int) -> dict:
    found = {}
    with served as (http_port, grpc_port, request):
        client.measure(http_port, request, 1, 1.0, 1)
        for in_flight in (1, 8):
            found[f"HTTP, {in_flight} in flight"] = client.measure(http_port, request, in_flight, seconds, rounds)
        if grpc_port is not None and grpc_python is not None:
            for in_flight in (1, 8):
                run = [grpc_python, HERE / "grpc_client.py", str(grpc_port), str(in_flight), str(seconds), str(rounds)]
                done = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True)
                found[f"gRPC, {in_flight} in flight"] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--with", dest="servers", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    pythons = dict(one.split("=", 1) for one in options.servers)
    grpc_python = pythons.get("pytriton")
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    machine = f"{model}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}, Python {platform.python_version()}"
    print(machine)
    commit = subprocess.run([BIN / "pappus", "--version"], capture_output=True, text=True).stdout.strip()
    results = {"pappus": {"version": commit, "figures": figures(pappus(1), grpc_python, options.seconds, options.rounds)}}
    for name, python in pythons.items():
        try:
            results[name] = {"version": version(name, python),
                             "figures": figures(foreign(name, python), grpc_python, options.seconds, options.rounds)}
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            results[name] = {"skipped": str(error)}
            print(f"SKIPPED: {name} was not measured: {error}"[:1000])
    ours = results["pappus"]["figures"]
    print(f"{'':22} {'':20} {'p50':>9} {'p99':>9} {'calls/s':>9}   p50 / that of Pappus")
    for name, result in results.items():
        for how, one in result.get("figures", {}).items():
            times = f"{one['p50_us'] / ours[how]['p50_us']:.1f}" if how in ours else ""
            print(f"{name + ' ' + result['version'][-12:]:22} {how:20} {one['p50_us']:6.0f} µs {one['p99_us']:6.0f} µs "
                  f"{one['calls_per_s']:9.0f}   {times}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
