"""Calls per second by turns=auto, on and off, through the released programs.

    python3 docs/benchmarks/turns.py DIR [--device cuda:0] [--seconds 5]

DIR has pappus, pappus-supervisor and pappus-worker. As root: each tenant is a uid of its own, each call in flight a `pappus invoke
--repeat` of its own. A line tells how often the status said that the chip slices.
"""

import argparse
import json
import os
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

FIRST_UID = 20_000
# Before anything counts: processes are made, and the modes are compared.
WARM_UP = 2.5
CONFIGS = Path(__file__).resolve().parents[2] / "kernels/configs"


def inputs(folder: Path) -> dict[str, tuple[int, list[str]]]:
    """By function, how often one command calls it, and with what."""
    files = {
        "A": struct.pack("<16385q", 128, *([3] * 16384)),
        "image": struct.pack("<50178f", 224, 224, *([0.5] * 50176)),
        "filter": struct.pack("<27f", 5, 5, *([0.1] * 25)),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o644)
    given = [f"A={folder}/image", f"B={folder}/filter", "size=i64:224,224", "times=i64:500"]
    return {"matmul": (400, [f"A={folder}/A"]), "inference": (20, given)}


def measure(programs: Path, device: str, function: str, tenants: int, flight: int, seconds: float) -> str:
    """One supervisor, and what its tenants got done."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    socket = folder / "socket"
    repeat, given = inputs(folder)[function]

    def pappus(*arguments: str, uid: int = 0) -> subprocess.CompletedProcess[str]:
        command = [programs / "pappus", "--socket", socket, *arguments]
        return subprocess.run(command, capture_output=True, text=True, user=uid, group=uid)

    def status() -> dict:
        return json.loads(pappus("status", "--json").stdout)["devices"][0]

    flags = ["--socket", socket, "--state-dir", folder / "state", "--device", device, "--metrics", "127.0.0.1:0"]
    with subprocess.Popen([programs / "pappus-supervisor", *flags], stderr=subprocess.DEVNULL) as supervisor:
        while pappus("status", "--ready").returncode != 0:
            time.sleep(0.1)
        for uid in range(FIRST_UID, FIRST_UID + tenants):
            pappus("function", "add", "f", str(CONFIGS / f"{function}.json"), uid=uid).check_returncode()
        end = time.monotonic() + WARM_UP + seconds

        def client(uid: int) -> None:
            arguments = [word for one in given for word in ("--input", one)]
            while time.monotonic() < end:
                pappus("invoke", "f", *arguments, "--repeat", str(repeat), "--json", uid=uid).check_returncode()

        uids = [FIRST_UID + tenant for tenant in range(tenants) for _ in range(flight)]
        clients = [threading.Thread(target=client, args=(uid,)) for uid in uids]
        for thread in clients:
            thread.start()
        time.sleep(WARM_UP)
        began, before, slices = time.monotonic(), status()["completed"], []
        while time.monotonic() < end - 0.3:
            slices.append(status()["slices"])
            time.sleep(0.2)
        after, took = status()["completed"], time.monotonic() - began
        for thread in clients:
            thread.join()
        supervisor.terminate()
    return f"{(after - before) / took:8.0f} calls/s, sliced {sum(slices) / len(slices):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    os.umask(0o022)
    cases = [("matmul", 8, 8), ("matmul", 8, 1), ("matmul", 2, 8), ("inference", 2, 8), ("inference", 8, 4)]
    for function, tenants, flight in cases:
        for turns in ["auto", "on", "auto", "on", "off"]:
            device = f"{options.device}:turns={turns}"
            done = measure(options.programs.resolve(), device, function, tenants, flight, options.seconds)
            print(f"{function:9} {tenants} × {flight}  turns={turns:4} {done}", flush=True)


if __name__ == "__main__":
    main()
