"""A real supervisor with the CPU device, for all tests; those that harm it start one of their own."""

from __future__ import annotations

import contextlib
import json
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
VEC_ADD = KERNELS / "configs/vec_add.json"
# Far more than anything here takes.
PATIENCE = 60.0


def program(name: str) -> str:
    """A program under test."""
    return str(Path(os.environ.get("PAPPUS_BIN_DIR", REPOSITORY / "target/debug")) / name)


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
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([program("pappus-supervisor"), *arguments], stdout=log, stderr=log)
        try:
            # Where it ends at once, nobody waits for it.
            threading.Thread(target=self.process.wait, daemon=True).start()
            pappus.connect(self.path, patience=PATIENCE).close()
        except BaseException:
            self.stop()
            raise

    def connect(self, **more: Any) -> pappus.Client:
        return pappus.connect(self.path, **more)

    def admin(self) -> pappus.Client:
        return pappus.connect(self.path + ".admin")

    def kill(self) -> None:
        """Ends it, and its workers with it, as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.kill()
        self._dir.cleanup()


@pytest.fixture(scope="session")
def supervisor() -> Iterator[Supervisor]:
    running = Supervisor()
    yield running
    running.stop()


@pytest.fixture
def start() -> Iterator[Callable[..., Supervisor]]:
    """Starts supervisors for one test."""
    with contextlib.ExitStack() as stack:

        def start(*args: Any, **more: Any) -> Supervisor:
            running = Supervisor(*args, **more)
            stack.callback(running.stop)
            return running

        yield start


@pytest.fixture
def client(supervisor: Supervisor) -> Iterator[pappus.Client]:
    with supervisor.connect() as client:
        yield client


@pytest.fixture
def vec_add(client: pappus.Client) -> pappus.Function:
    return client.add_function("vec_add", VEC_ADD, replace=True)


@pytest.fixture
def echo(client: pappus.Client, tmp_path: Path) -> Callable[..., pappus.Function]:
    """Makes functions that copy inputs to outputs, of any declared types."""

    def make(*ports: tuple[str, str | None], name: str = "echo", shape: list[Any] | None = None) -> pappus.Function:
        """`ports` are inputs with their types; the output of `X` is `Xo`."""
        types: dict[str, Any] = {}
        for port, dtype in ports:
            if dtype is not None:
                declared = {"dtype": dtype} if shape is None else {"dtype": dtype, "shape": shape}
                types |= {port: declared, port + "o": declared}
        blueprint = {
            "inputs": [port for port, _ in ports],
            "buffers": {port + "o": {"Sizeof": port} for port, _ in ports},
            "outputs": [port + "o" for port, _ in ports],
            "types": types,
            "control_flow": [{"Copy": {"from": port, "to": port + "o"}} for port, _ in ports],
        }
        config = {"module_path": str(KERNELS / "built/module.wasm"), "kernels": [], "blueprint": blueprint}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config))
        return client.add_function(name, path, replace=True)

    return make


@pytest.fixture
def endless(client: pappus.Client) -> Callable[[], tuple[pappus.Function, dict[str, Any]]]:
    """A function with inputs for which it runs for hours."""
    import numpy as np

    def make() -> tuple[pappus.Function, dict[str, Any]]:
        function = client.add_function("jacobi", KERNELS / "configs/jacobi.json", replace=True)
        one = np.ones(64, np.float32)
        return function, {"cfg": np.uint64([450_000]), "A": np.eye(64, dtype=np.float32), "b": one, "x": one}

    return make


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
