"""A template's configurations before any source is written of them: most are never taken.

Inductor writes the source of every configuration that a matrix product or convolution could have, which takes longer than all
the rest of a lowering. Here each waits until it is chosen.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch._inductor.select_algorithm import TritonTemplate

# What Inductor hands to a template beside its configuration.
_NO_CONFIGURATION = frozenset(inspect.signature(TritonTemplate.generate).parameters)


class Deferred:
    """One configuration; what is estimated from looks like that of the choice that it becomes.

    Its ``description`` is what tables of measurements call it.
    """

    def __init__(self, make: Any, template: Any, given: dict[str, Any]) -> None:
        self._make = make
        self._template = template
        self._given = given
        self.name = f"triton_{template.name}_0"
        self.layout = given["layout"]
        self.input_nodes = given["input_nodes"]
        self.description = _described(given)
        self.bmreq = SimpleNamespace(num_stages=given["num_stages"], num_warps=given["num_warps"])
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


def _described(given: dict[str, Any]) -> str:
    """What Inductor will call the configuration once there is a source of it; tables have been written with these words."""
    shown = [f"{key}={given[key]!r}" for key in sorted(given.keys() - _NO_CONFIGURATION)]
    shown += [f"{key}={given[key]}" for key in ("num_stages", "num_warps")]
    # Inductor puts dashes between them, and replaces these afterwards with every minus.
    return "-".join(shown).strip("-").replace("-", ", ")


@contextlib.contextmanager
def templates() -> Iterator[None]:
    """Has Inductor's templates make these meanwhile."""
    make = TritonTemplate.generate

    def generate(self: Any, **given: Any) -> Any:
        return Deferred(make, self, given)

    with mock.patch.object(TritonTemplate, "generate", generate):
        yield
