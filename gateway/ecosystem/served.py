"""A supervisor on the CPU device with a tenant that has `vec_add` and `last`, and a gateway in front of it; PAPPUS_BIN_DIR says where the programs are."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BIN = Path(os.environ["PAPPUS_BIN_DIR"])
REPOSITORY = Path(__file__).resolve().parents[2]
TOKEN = "the token of acme"
# A function with state: its output is what the call before brought.
LAST = {
    "module_path": str(REPOSITORY / "kernels/built/module.wasm"),
    "kernels": [],
    "blueprint": {
        "inputs": ["X"],
        "state": {"last": 16},
        "buffers": {"before": 16},
        "outputs": ["before"],
        "types": {name: {"dtype": "f32", "shape": [4]} for name in ("X", "last", "before")},
        "control_flow": [{"Copy": {"from": "last", "to": "before"}}, {"Copy": {"from": "X", "to": "last"}}],
    },
}


@contextmanager
def served() -> Iterator[dict[str, str]]:
    """Where HTTP and gRPC are served, by protocol."""
    with tempfile.TemporaryDirectory() as folder:
        hashed = hashlib.sha256(TOKEN.encode()).hexdigest()
        config = Path(folder, "pappus.toml")
        config.write_text(f'gateways = [{os.getuid()}]\n[tenants.acme]\ntoken-sha256 = "{hashed}"\n')
        Path(folder, "token").write_text(TOKEN)
        socket = Path(folder, "socket")
        running = []
        try:
            running.append(subprocess.Popen([
                BIN / "pappus-supervisor", "--socket", socket, "--state-dir", Path(folder, "state"), "--config", config,
                "--device", "cpu:workers=1,memory=256MiB",
            ]))
            pappus = [BIN / "pappus", "--socket", socket, "--patience", "60s", "--token-file", Path(folder, "token")]
            config = REPOSITORY / "kernels/configs/vec_add.json"
            subprocess.run([*pappus, "function", "add", "vec_add", config], check=True)
            last = Path(folder, "last.json")
            last.write_text(json.dumps(LAST))
            subprocess.run([*pappus, "function", "add", "last", last], check=True)
            gateway = subprocess.Popen(
                [BIN / "pappus-gateway", "--socket", socket, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
                 "--shared-memory"],
                stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"},
            )
            running.append(gateway)
            addresses = {}
            while len(addresses) < 2:
                line = gateway.stderr.readline()
                assert line, "the gateway ended"
                if found := re.search(r"serving (\w+) on (\S+)", line):
                    addresses[found[1]] = found[2]
            yield addresses
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait()
