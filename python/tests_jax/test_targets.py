"""One package for several architectures, where their launches agree, and the release of JAX that this is for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pappus import package
from pappus.package import cubin, targets, xla_lowering

X = np.ones((64, 256), np.float32)


def test_several_targets(tmp_path: Path, check: Callable[[Path], str]) -> None:
    built = package.jax(lambda x: jnp.tanh(x * 2) - x.sum(0), (X,), targets=["sm_80", "sm_90", "sm_100"])
    stems = {path.split(".")[0] for path in built.modules}
    assert set(built.modules) == {f"{stem}.{arch}.cubin" for stem in stems for arch in ("sm_80", "sm_90a", "sm_100a")}
    assert len(set(built.modules.values())) == len(built.modules)
    assert "a valid function" in check(built.save(tmp_path / "several.pappus"))


@pytest.mark.parametrize("arch", xla_lowering.GPUS)
def test_every_target_that_is_described(arch: str) -> None:
    """Machine code is for the architecture that was asked for, and takes what the blueprint passes."""
    built = package.jax(lambda x: jnp.tanh(x @ x.T), (X,), targets=[arch])
    (target,) = targets.parse(arch)
    for name, arguments, _ in [step["ExecKernel"] for step in built.blueprint["control_flow"]]:
        code = built.modules[f"modules/{name}{target.file_suffix}"]
        assert cubin.parameters(code, name) == [(8 * at, 8) for at in range(len(arguments))]
        # The architecture stands in the file's flags: lowest, or above that in files of a newer version.
        assert code[0x31 if code[7] == 0x41 else 0x30] == target.capability


def test_without_a_gpu_jax_must_be_told_not_to_look_for_one() -> None:
    program = "from pappus import package; package.jax(lambda x: x + 1, (1.0,))"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "PackageError: JAX did not load its plugin for CUDA" in done.stderr
    assert "JAX_PLATFORMS=cpu" in done.stderr


def test_the_release_that_is_installed_is_one_that_is_tested() -> None:
    root = Path(__file__).resolve().parents[2]
    tested = re.search(r"^releases=\((.*)\)$", (root / "scripts/ecosystem/jax").read_text(), re.M)
    assert tested is not None
    assert {".".join(release.split(".")[:2]) for release in tested.group(1).split()} == set(xla_lowering.SUPPORTED)
    assert jax.__version__.startswith(tuple(f"{release}." for release in xla_lowering.SUPPORTED))
