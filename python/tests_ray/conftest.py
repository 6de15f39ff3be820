"""One cluster for the tests of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from machines import Machines


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    running = Machines()
    yield running
    running.stop()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for what nothing tells of."""

    def until(true: Callable[[], bool]) -> None:
        while not true():
            pass

    return until
