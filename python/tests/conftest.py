"""A real supervisor with the CPU device, for all tests; those that harm it start one of their own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
from fixture import KERNELS, VEC_ADD, Supervisor


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

    def make() -> tuple[pappus.Function, dict[str, Any]]:
        function = client.add_function("jacobi", KERNELS / "configs/jacobi.json", replace=True)
        one = np.ones(64, np.float32)
        return function, {"steps": 900_000, "A": np.eye(64, dtype=np.float32), "b": one, "x": one}

    return make


@pytest.fixture
def house(start: Callable[..., Supervisor]) -> Iterator[tuple[pappus.Client, pappus.Client]]:
    """Two tenants of one gateway, this user."""
    tokens = {name: f"the token of {name}" for name in ("acme", "globex")}
    config = f"gateways = [{os.geteuid()}]\n"
    for name, token in tokens.items():
        config += f'[tenants.{name}]\ntoken-sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n'
    supervisor = start(config)
    with pytest.raises(pappus.PermissionDenied):
        supervisor.connect(token="wrong")
    with supervisor.connect(token=tokens["acme"]) as acme, supervisor.connect(token=tokens["globex"].encode()) as globex:
        yield acme, globex
