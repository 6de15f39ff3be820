"""Packages of others that only some of this package needs."""

from __future__ import annotations


def install(extra: str) -> str:
    """How to install what an extra needs. This package comes from Pappus' sources: no package index has it."""
    return f"in Pappus' sources, pip install './python[{extra}]' (the package is on no index)"
