"""A template's configurations before any source is written of them: most are never taken.

Inductor writes the source of every configuration that a matrix product or convolution could have, which takes longer than all
the rest of a lowering. Here each waits until it is chosen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch._inductor.select_algorithm import TritonTemplate


class Deferred:
    """One configuration; what is estimated from looks like that of the choice that it becomes."""

    def __init__(self, make: Any, template: Any, given: dict[str, Any]) -> None:
        self._make = make
        self._template = template
        self._given = given
        self.name = f"triton_{template.name}_0"
        self.layout = given["layout"]
        self.input_nodes = given["input_nodes"]
        numbers = {key: value for key, value in given.items() if isinstance(value, int | str)}
        last = {key: numbers.pop(key) for key in ("num_stages", "num_warps")}
        numbers.pop("generate_with_caching", None)
        shown = [f"{key}={value}" for key, value in [*sorted(numbers.items()), *last.items()]]
        self.description = ", ".join(shown)
        self.bmreq = SimpleNamespace(**last)
        self.annotations: dict[str, Any] = {}

    def choice(self) -> Any:
        """Inductor's own, with its source; None where the template cannot be so."""
        try:
            made = self._make(self._template, **self._given)
        except NotImplementedError:
            return None
        if made is not None:
            made.annotations = self.annotations
        return made


@contextlib.contextmanager
def templates() -> Iterator[None]:
    """Has Inductor's templates make these meanwhile."""
    make = TritonTemplate.generate

    def generate(self: Any, **given: Any) -> Any:
        return Deferred(make, self, given)

    with mock.patch.object(TritonTemplate, "generate", generate):
        yield
