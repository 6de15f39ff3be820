"""Compositions: functions that a supervisor links into one, or calls one after the other.

Each is written here (:func:`pappus.package.compose`), and judged where it is registered. docs/compositions.md says what steps
may be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pappus import _arrays

from .errors import PackageError


@dataclass(frozen=True, slots=True)
class Source:
    """Where bytes come from: an input, a constant, or an output of a step."""

    written: str | dict[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was added: ``step["output"]`` is one of its outputs, and the step itself its only one."""

    name: str

    def __getitem__(self, output: str) -> Source:
        return Source({"step": self.name, "output": output})


class Composition:
    """A composition that is being written: inputs, constants and steps first, outputs last."""

    def __init__(self) -> None:
        self._inputs: list[str] = []
        self._constants: dict[str, Any] = {}
        self._steps: list[dict[str, Any]] = []
        self._outputs: dict[str, Any] = {}

    def input(self, name: str) -> Source:
        """Bytes that come with each call."""
        self._inputs.append(name)
        return Source(name)

    def constant(self, name: str, values: Any) -> Source:
        """An array that is always the same, of a type that functions have."""
        array = np.asarray(values)
        dtype = _arrays.name_of(array.dtype)
        self._constants[name] = {"dtype": dtype, "shape": list(array.shape), "values": array.reshape(-1).tolist()}
        return Source(name)

    def step(
        self,
        name: str,
        function: str,
        inputs: Mapping[str, Source | Step],
        *,
        each: Sequence[str] = (),
        items: int | None = None,
        times: int | None = None,
        feed: Mapping[str, str] | None = None,
    ) -> Step:
        """Runs a function: ``inputs`` says where each of its inputs comes from.

        With ``each`` and ``items`` it runs for each item of these inputs; with ``times`` and ``feed`` so often, one time after
        the other, where ``feed`` says which output is which input of the next time.
        """
        if bool(each) != (items is not None):
            raise PackageError(f"step {name}: `each` and `items` come together")
        step: dict[str, Any] = {"name": name, "function": function}
        step["inputs"] = {key: _written(source) for key, source in inputs.items()}
        if items is not None:
            step["each"] = {"items": items, "inputs": list(each)}
        if times is not None:
            step["times"] = times
        if feed is not None:
            step["feed"] = dict(feed)
        self._steps.append(step)
        return Step(name)

    def output(self, name: str, source: Source | Step) -> None:
        """A result, in the order in which they are added."""
        self._outputs[name] = _written(source)

    @property
    def document(self) -> dict[str, Any]:
        """The composition as it is saved."""
        written: dict[str, Any] = {"inputs": self._inputs}
        if self._constants:
            written["constants"] = self._constants
        return {**written, "steps": self._steps, "outputs": self._outputs}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes it, for ``pappus function check`` and ``pappus function add``."""
        target = Path(path)
        target.write_text(json.dumps(self.document, indent=2, allow_nan=False) + "\n")
        return target


def _written(source: Source | Step) -> str | dict[str, str]:
    return {"step": source.name} if isinstance(source, Step) else source.written
