"""Which process a client belongs to, and whether its connection still holds."""

from __future__ import annotations

import os

from pappus.errors import Error, InvalidArgument, fresh


class Owner:
    """The process that made a client.

    A child that ``fork`` made has a copy of the client: the same socket, the same shared memory. Requests of the child would
    be mixed with those of its parent, and it would take its parent's answers. So it may only close its own descriptor.
    """

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def is_this(self) -> bool:
        """True if that is the process that runs this."""
        return os.getpid() == self._pid

    def refusal(self) -> InvalidArgument:
        """Why another process cannot use it."""
        return InvalidArgument(
            f"this client belongs to process {self._pid}, of which this one (process {os.getpid()}) is a fork: connect in each "
            "process that makes calls"
        )

    def check(self) -> None:
        """Refuses every process but that one."""
        if not self.is_this():
            raise self.refusal()


class Owned:
    """A connection of one process, until it breaks."""

    def __init__(self) -> None:
        self._owner = Owner()
        self._broken: Error | None = None

    @property
    def broken(self) -> Error | None:
        """Why nothing can be sent any more, or not by this process."""
        return self._broken if self._owner.is_this() else self._owner.refusal()

    def check(self) -> None:
        """Refuses other processes, and raises what broke the connection."""
        self._owner.check()
        if self._broken is not None:
            raise fresh(self._broken)
