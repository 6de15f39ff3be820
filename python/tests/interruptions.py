"""Exceptions of signal handlers, at every point of the client where the interpreter runs handlers."""

from __future__ import annotations

import dis
import functools
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pappus

PACKAGE = str(Path(pappus.__file__).parent)


class Interrupt(TimeoutError):
    """What the handlers raise: of a kind that a careless client takes for an error of its socket."""


class Interruption:
    """Raises an :class:`Interrupt` at the nth point at which a signal handler may run within the package.

    That is where a function begins, behind a call, and where a loop jumps back.
    """

    def __init__(self, nth: int) -> None:
        self._left = nth
        self.place = ""

    def __call__(self, work: Callable[[], Any]) -> bool:
        """Does the work; whether it was interrupted."""
        sys.settrace(self._trace)
        try:
            work()
        except Interrupt:
            pass
        finally:
            sys.settrace(None)
        # What the frames of it kept is let go.
        gc.collect()
        return self.place != ""

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        # What is raised in `__del__` is printed and forgotten by Python itself.
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name == "__del__":
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "call" or (event == "opcode" and frame.f_lasti in _points(frame.f_code)):
            self._point(frame)
        return self._trace

    def _point(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left == 0:
            self.place = f"{frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name}:{frame.f_lineno}"
            raise Interrupt("a signal handler's")


@functools.cache
def _points(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions before which handlers may run.

    What is raised behind a call is caught where the call stands. Raised at the next instruction, it must be caught there, too.
    """
    found = set()
    call: int | None = None
    for instruction in dis.get_instructions(code):
        name, at = instruction.opname, instruction.offset
        if name in {"CACHE", "PRECALL", "EXTENDED_ARG"}:
            continue
        if (
            "JUMP_BACKWARD" in name
            or name == "JUMP_ABSOLUTE"
            or (call is not None and _caught(code, call) == _caught(code, at))
        ):
            found.add(at)
        call = at if name.startswith("CALL") else None
    return frozenset(found)


def _caught(code: CodeType, at: int) -> object:
    """What catches an exception of an instruction. Interpreters before 3.11 have no table of it: the block ends behind."""
    entries = getattr(dis.Bytecode(code), "exception_entries", ())
    return next((entry.target for entry in entries if entry.start <= at < entry.end), None)


def everywhere(work: Callable[[], Any], check: Callable[[str], Any], before: Callable[[], Any] = lambda: None) -> int:
    """Does it again and again, interrupted at one point after the other, until it is not reached; how many there are."""
    # What there is already need not be looked through again and again.
    gc.collect()
    gc.freeze()
    try:
        for nth in range(1, 10_000):
            before()
            interruption = Interruption(nth)
            if not interruption(work):
                return nth - 1
            check(interruption.place)
        raise AssertionError("it never ends")
    finally:
        gc.unfreeze()
