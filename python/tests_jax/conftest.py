"""Packaging of JAX's functions: collected only where JAX is installed (scripts/ecosystem/jax installs it)."""

from __future__ import annotations

import importlib.util
import os

from fixture import check as check

# There is no GPU, and nothing needs one: without this, JAX looks for it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

if importlib.util.find_spec("jax") is None:
    collect_ignore = [
        "test_functions.py",
        "test_refusals.py",
        "test_targets.py",
        "test_thunks.py",
        "networks.py",
        "hlo.py",
        "gpu.py",
    ]
