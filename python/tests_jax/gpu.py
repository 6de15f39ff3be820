"""Writes what a machine with a GPU needs to compare the numbers of JAX's packages: packages, inputs, and what JAX computes.

    JAX_PLATFORMS=cpu PYTHONPATH=src:tests_jax python tests_jax/gpu.py FOLDER

FOLDER (2 MB) goes to the machine with the GPU, where a supervisor runs; nothing of JAX is needed there, and NumPy is:

    python3 FOLDER/compare.py [PAPPUS]       # the command's path; PAPPUS_SOCKET names a supervisor on another socket
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import networks
from pappus import package

COMPARE = '''"""Calls each package here on the GPU, and compares with what JAX computed on the processor."""
import json, os, subprocess, sys
import numpy as np

here, pappus, failed = os.path.dirname(os.path.abspath(__file__)), (sys.argv + ["pappus"])[1], 0


def run(name, *command):
    """Whether the command succeeded; otherwise its message is the case's."""
    done = subprocess.run([pappus, *command], capture_output=True, text=True)
    if done.returncode:
        print(f"WRONG {name}: {command[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.returncode == 0


for name, case in json.load(open(f"{here}/cases.json")).items():
    function = f"jax-{name}"
    subprocess.run([pappus, "function", "remove", function], capture_output=True)
    if not run(name, "function", "add", function, f"{here}/{name}.pappus"):
        failed += 1
        continue
    arguments = []
    for given in case["inputs"]:
        arguments += ["--input", f"{given}={here}/{name}.{given}.npy"]
    for output in case["outputs"]:
        arguments += ["--output", f"{output}={here}/{name}.{output}.found.npy"]
    for call in range(3):
        if not run(name, "invoke", function, *arguments):
            failed += 1
            break
        for output in case["outputs"]:
            wanted, found = (np.load(f"{here}/{name}.{output}.{what}npy").astype("f8") for what in ("", "found."))
            same, limit = wanted.shape == found.shape, case["tolerance"]
            off = np.abs(wanted - found).max() / max(1.0, np.abs(wanted).max()) if same else np.inf
            good = off <= limit
            failed += not good
            print(f"{'ok  ' if good else 'WRONG'} {name} {output}: off by {off:.2e}, {limit:.0e} is allowed, call {call + 1}")
sys.exit(1 if failed else 0)
'''


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def deep(layers: Any, x: Any) -> Any:
    return jax.lax.scan(lambda carried, layer: (jnp.tanh(carried @ layer), carried.sum()), x, layers)


def exact(function: Any) -> Any:
    """With products in f32 throughout; otherwise XLA rounds their operands to TF32 on GPUs, as it always does."""

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*arguments)

    return run


# Name: function, weights, inputs by name, tolerance relative to the largest value.
CASES: dict[str, Any] = {
    "dense": (networks.dense, networks.dense_weights(), {"x": normal(16, 64)}, 5e-3),
    "dense-exact": (exact(networks.dense), networks.dense_weights(), {"x": normal(16, 64)}, 1e-5),
    "dense-f16": (networks.dense, networks.dense_weights(np.float16), {"x": normal(64, 64).astype(np.float16)}, 5e-3),
    "transformer": (networks.transformer, networks.block_weights(), {"x": normal(2, 16, 32)}, 2e-2),
    "transformer-exact": (exact(networks.transformer), networks.block_weights(), {"x": normal(2, 16, 32)}, 1e-4),
    "softmax": (jax.nn.softmax, None, {"x": normal(33, 1000)}, 1e-6),
    "loop-over-layers": (exact(deep), normal(3, 16, 16) / 4, {"x": normal(8, 16)}, 1e-5),
    "loop": (exact(lambda x: jax.lax.fori_loop(0, 9, lambda _, c: jnp.sin(c @ x), x)), None, {"x": normal(16, 16) / 4}, 1e-5),
    "sort": (lambda x: (jnp.sort(x), *jax.lax.top_k(x, 3)), None, {"x": normal(8, 64)}, 0.0),
    "product": (lambda x: x @ x.T, None, {"x": normal(256, 512).astype(np.float16)}, 5e-3),
}


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    listed = {}
    for name, (function, weights, inputs, tolerance) in CASES.items():
        given = tuple(inputs.values())
        built = package.jax(function, given, weights=weights)
        built.save(folder / f"{name}.pappus")
        names, outputs = built.blueprint["inputs"], built.blueprint["outputs"]
        for key, value in zip(names, given, strict=True):
            np.save(folder / f"{name}.{key}.npy", value)
        result = jax.jit(function)(*(given if weights is None else (weights, *given)))
        for key, value in zip(outputs, jax.tree_util.tree_leaves(result), strict=True):
            np.save(folder / f"{name}.{key}.npy", np.asarray(value))
        listed[name] = {"inputs": names, "outputs": outputs, "tolerance": tolerance}
    (folder / "cases.json").write_text(json.dumps(listed, indent=1))
    (folder / "compare.py").write_text(COMPARE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
