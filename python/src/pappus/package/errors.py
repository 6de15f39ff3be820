"""Why something cannot be packaged."""

from __future__ import annotations


class PackageError(Exception):
    """What was given cannot become a function; nothing was written."""


class Unsupported(PackageError):
    """An operator of a model, or a feature of a kernel, that has no form in a function.

    ``what`` names it, ``where`` is the line of the user's program that it came from, if that is known.
    """

    def __init__(self, what: str, why: str, where: str | None = None) -> None:
        self.what = what
        self.why = why
        self.where = where
        place = f" (at {where})" if where else ""
        super().__init__(f"{what}{place}: {why}")
