"""Supervisors for tests, and servers that pretend to be one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pappus

REPOSITORY = Path(__file__).resolve().parents[2]
KERNELS = REPOSITORY / "kernels"
PROGRAMS = Path(os.environ.get("PAPPUS_BIN_DIR", REPOSITORY / "target/debug"))
VEC_ADD = KERNELS / "configs/vec_add.json"
# Far more than anything here takes.
PATIENCE = 60.0


def program(name: str) -> str:
    """A program under test."""
    return str(PROGRAMS / name)


@pytest.fixture(scope="session")
def check() -> Callable[[Path], str]:
    """``pappus function check``: what it says of a package, which must be valid."""

    def run(path: Path) -> str:
        done = subprocess.run([program("pappus"), "function", "check", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


class Supervisor:
    """A running supervisor in a directory of its own."""

    def __init__(self, config: str | None = None, device: str = "cpu:workers=2,memory=64MiB") -> None:
        self._dir = tempfile.TemporaryDirectory(prefix="pappus-")
        self.path = f"{self._dir.name}/socket"
        self.log = Path(self._dir.name) / "log"
        arguments = ["--socket", self.path, "--state-dir", f"{self._dir.name}/state", "--device", device]
        if config is not None:
            file = Path(self._dir.name) / "pappus.toml"
            file.write_text(config)
            arguments += ["--config", str(file)]
        self._arguments = [program("pappus-supervisor"), *arguments]
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again."""
        self._expected_to_run = True
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._arguments, stdout=log, stderr=log)
        try:
            pappus.connect(self.path, patience=PATIENCE).close()
        except BaseException:
            print(self.log.read_text())
            self.stop()
            raise

    def connect(self, **more: Any) -> pappus.Client:
        return pappus.connect(self.path, **more)

    def admin(self) -> pappus.Client:
        return pappus.connect(self.path + ".admin")

    def kill(self) -> None:
        """Ends it, and its workers with it, as a crash would."""
        self._expected_to_run = False
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Asks it to end, as a service manager would, and waits until it has."""
        self._expected_to_run = False
        self.process.terminate()
        self.process.wait()

    def stop(self) -> None:
        """Ends it, and removes its directory; shows its log, should it have ended before anybody asked it to."""
        if self._expected_to_run and self.process.poll() not in (None, 0):
            print(f"the supervisor ended with {self.process.returncode}:\n{self.log.read_text()}")
        self.kill()
        self._dir.cleanup()


@contextlib.contextmanager
def pretender(*answers: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that is no supervisor: accepts one connection and does these things to it."""
    with tempfile.TemporaryDirectory(prefix="pappus-") as folder:
        path = f"{folder}/socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()

            def serve() -> None:
                peer, _ = listener.accept()
                with peer, contextlib.suppress(OSError):
                    for answer in answers:
                        answer(peer)

            thread = threading.Thread(target=serve)
            thread.start()
            yield path
            thread.join()
