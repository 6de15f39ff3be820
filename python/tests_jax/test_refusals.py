"""What has no form in a function is refused with its name and the line of the user's program."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pappus import package
from pappus.package import PackageError, Unsupported

X = np.eye(8, dtype=np.float32)


def transforms(x: Any) -> Any:
    return jnp.abs(jnp.fft.rfft(x * 2))


def solves(x: Any) -> Any:
    return jnp.linalg.inv(x + 1)


def decomposes(x: Any) -> Any:
    return jnp.linalg.cholesky(x)


def branches(x: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda x: x @ x, lambda x: jnp.sin(x), x)


def waits(x: Any) -> Any:
    return jax.lax.while_loop(lambda x: x.sum() < 100, lambda x: x * 2, x)


def prints(x: Any) -> Any:
    jax.jit(lambda x: jax.debug.print("{}", x))(x)
    return x + 1


def calls(x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda _, x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x), x)


def line_of(function: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("function", "operation", "text", "why"),
    [
        (transforms, "fft", "rfft", "has no kernel"),
        (solves, "cusolver_getrf_ffi", "inv", "has no kernel"),
        (decomposes, "cholesky", "cholesky", "has no kernel"),
        (branches, "cond", "lax.cond", "do not depend on data"),
        (waits, "while", "while_loop", "do not depend on data"),
        (prints, "debug_", "debug.print", "nothing on the host"),
        (calls, "pure_callback", "pure_callback", "nothing on the host"),
    ],
)
def test_an_operation_without_a_form(function: Any, operation: str, text: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why) as refused:
        package.jax(function, (X,))
    assert operation in refused.value.what
    assert refused.value.where is not None
    assert f"test_refusals.py:{line_of(function, text)}: " in refused.value.where
    assert text in refused.value.where


def test_types_that_blueprints_do_not_have() -> None:
    with pytest.raises(Unsupported, match="complex64") as refused:
        package.jax(lambda z: z * 2, (X.astype(np.complex64),))
    assert refused.value.what == "'z' of type complex64"
    with pytest.raises(Unsupported, match="'output' of type float8"):
        package.jax(lambda x: x.astype(jnp.float8_e4m3fn), (X,))


def test_what_cannot_be_traced_is_told() -> None:
    with pytest.raises(PackageError, match="JAX cannot trace the function"):
        package.jax(lambda x: x if x.sum() > 0 else -x, (X,))
    with pytest.raises(PackageError, match="does not take 2 arguments"):
        package.jax(lambda x: x, (X, X))
    with pytest.raises(PackageError, match="has no result"):
        package.jax(lambda x: None, (X,))
    with pytest.raises(PackageError, match="nothing is computed"):
        package.jax(lambda x: x, (X,))


def test_targets_that_xla_is_not_told_about() -> None:
    with pytest.raises(PackageError, match="sm_75 is not described to XLA here"):
        package.jax(lambda x: x + 1, (X,), targets=["sm_75"])
    with pytest.raises(PackageError, match="gfx942: functions of JAX are packaged for NVIDIA's GPUs only"):
        package.jax(lambda x: x + 1, (X,), targets=["gfx942"])


def test_launches_that_differ_between_targets() -> None:
    with pytest.raises(PackageError, match=r"sm_80 and sm_90.*make a package for each"):
        package.jax(lambda x: x @ x, (np.zeros((512, 512), np.float16),), targets=["sm_80", "sm_90"])
