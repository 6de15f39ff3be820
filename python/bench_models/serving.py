"""A supervisor of one's own that has a device, and the `pappus` command beside it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# How long a supervisor may take to be ready, and to end, in seconds.
PATIENCE = 60


class Served:
    """The command, for one supervisor."""

    def __init__(self, programs: Path, socket: Path) -> None:
        self.command = (str(programs / "pappus"), "--socket", str(socket))

    def run(self, *arguments: str) -> Any:
        """What the command says as JSON; an error with its words where it fails."""
        done = subprocess.run([*self.command, *arguments, "--json"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"pappus {' '.join(arguments)}: {done.stderr.strip()}")
        return json.loads(done.stdout)


@contextlib.contextmanager
def supervisor(programs: Path, device: str, log: Path, state: Path | None = None) -> Iterator[Served]:
    """Starts one with nothing registered, or with what ``state`` has; ``device`` may have settings behind it."""
    with tempfile.TemporaryDirectory(prefix="pappus-models-") as home, log.open("wb") as said:
        socket = Path(home) / "pappus.sock"
        arguments = ["--socket", str(socket), "--state-dir", str(state or f"{home}/state"), "--device", device]
        process = subprocess.Popen([programs / "pappus-supervisor", *arguments], stdout=said, stderr=said)
        served = Served(programs, socket)
        try:
            _wait(process, served, log)
            yield served
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], served: Served, log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while subprocess.run([*served.command, "status", "--ready"], capture_output=True, check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the supervisor did not start; its log:\n{log.read_text()}")
        time.sleep(0.05)
