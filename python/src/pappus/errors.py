"""What can go wrong, as exceptions. Every message says what to do about it.

Whatever this package raises on purpose is an :class:`Error` with a ``code`` of the protocol, and says whether the same
request may succeed later (``retryable``) and when to come back (``retry_after``, in seconds).
"""

from __future__ import annotations

import enum
from typing import Any

from pappus._proto import pappus_pb2 as v1


class Code(str, enum.Enum):
    """Codes of errors, as ``proto/pappus.proto`` defines them."""

    UNSPECIFIED = "CODE_UNSPECIFIED"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    UNSUPPORTED = "UNSUPPORTED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    KERNEL_FAULT = "KERNEL_FAULT"
    WORKER_LOST = "WORKER_LOST"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"
    QUARANTINED = "QUARANTINED"
    OVERRUN = "OVERRUN"
    SESSION_LOST = "SESSION_LOST"

    def __str__(self) -> str:
        return self.value


class Error(Exception):
    """Why a request, or the connection, failed. There is a subclass for each code that callers tell apart."""

    code: Code = Code.UNSPECIFIED
    """What kind of error it is."""

    def __init__(
        self,
        message: str,
        *,
        place: str = "",
        retryable: bool = False,
        retry_after: float | None = None,
        code: Code | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        """Where: a JSON path in a configuration, or a field of the request; may be empty."""
        self.retryable = retryable
        """Whether the same request may succeed later, or at another supervisor."""
        self.retry_after = retry_after
        """Seconds until it is worth another try; ``None`` where that is not known."""
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        kernel = self.place.removeprefix("kernel ")
        # A kernel that failed is named once.
        is_named = kernel != self.place and self.message.startswith(f"kernel `{kernel}`")
        at = f"at {self.place}: " if self.place and not is_named else ""
        again = "" if self.retry_after is None else f" (try again in {self.retry_after:g} s)"
        return f"{at}{self.message} [{self.code}]{again}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel between processes: what a class is called with differs from what it keeps.
        return _restored, (type(self), self.message, self.place, self.retryable, self.retry_after, self.code)


def _restored(kind: type[Error], message: str, place: str, retryable: bool, retry_after: float | None, code: Code) -> Error:
    error = kind.__new__(kind, message)
    Error.__init__(error, message, place=place, retryable=retryable, retry_after=retry_after, code=code)
    return error


class InvalidArgument(Error, ValueError):
    """A request, array, configuration or file is wrong; ``place`` says where."""

    code = Code.INVALID_ARGUMENT


class NotFound(Error, LookupError):
    """There is no such function, module or grant, or it is another tenant's."""

    code = Code.NOT_FOUND


class AlreadyExists(Error):
    """The name is taken."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(Error):
    """The supervisor does not serve this user, or not in this way."""

    code = Code.PERMISSION_DENIED


class ResourceExhausted(Error):
    """A queue or a limit is full; ``retry_after`` says when to come back."""

    code = Code.RESOURCE_EXHAUSTED


class OutOfMemory(Error):
    """The call needs more device memory than it can have."""

    code = Code.OUT_OF_MEMORY


class Unsupported(Error):
    """No device of the supervisor can run it."""

    code = Code.UNSUPPORTED


class DeadlineExceeded(Error):
    """The deadline of the call passed."""

    code = Code.DEADLINE_EXCEEDED


class Cancelled(Error):
    """The call was cancelled by this client."""

    code = Code.CANCELLED


class KernelFault(Error):
    """A kernel of the call did something illegal."""

    code = Code.KERNEL_FAULT


class WorkerLost(Error):
    """The worker process ended under the call twice."""

    code = Code.WORKER_LOST


class Unavailable(Error):
    """The supervisor drains or shuts down."""

    code = Code.UNAVAILABLE


class Internal(Error):
    """A fault of Pappus; the supervisor's log has details."""

    code = Code.INTERNAL


class Quarantined(Error):
    """The function failed too often in a row for this caller and is refused for a while."""

    code = Code.QUARANTINED


class Overrun(Error):
    """The call kept others from the device for too long, and was ended."""

    code = Code.OVERRUN


class SessionLost(Error):
    """The session is over, and its state is gone: another one begins with zeroes."""

    code = Code.SESSION_LOST


class Unreachable(Unavailable):
    """No supervisor listens on the socket."""


class ConnectionLost(Unavailable):
    """The connection ended. What was in flight has no answer; functions are pure, so it can be called again."""


class ProtocolError(Internal):
    """The peer does not speak this protocol, or not correctly."""


_CLASSES: dict[int, type[Error]] = {
    v1.Code.Value(kind.code.value): kind
    for kind in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        ResourceExhausted,
        OutOfMemory,
        Unsupported,
        DeadlineExceeded,
        Cancelled,
        KernelFault,
        WorkerLost,
        Unavailable,
        Internal,
        Quarantined,
        Overrun,
        SessionLost,
    )
}

# After these the call may still write into its output regions: its worker is told to stop, and does so a little later.
MAY_STILL_WRITE: frozenset[int] = frozenset({v1.CANCELLED, v1.DEADLINE_EXCEEDED})


def fresh(error: Error) -> Error:
    """An error like this one, to be raised: one that is kept must not keep who was there when it was raised."""
    again, given = error.__reduce__()
    made: Error = again(*given)
    return made


def from_answer(error: v1.Error) -> Error:
    """An error of the supervisor's as an exception; codes of newer supervisors become a plain :class:`Error`."""
    kind = _CLASSES.get(error.code, Error)
    retry_after = error.retry_after_ms / 1000 if error.retry_after_ms else None
    message = error.message or "the supervisor gives no reason"
    return kind(message, place=error.place, retryable=error.retryable, retry_after=retry_after)


__all__: list[str] = [
    "AlreadyExists",
    "Cancelled",
    "Code",
    "ConnectionLost",
    "DeadlineExceeded",
    "Error",
    "Internal",
    "InvalidArgument",
    "KernelFault",
    "NotFound",
    "OutOfMemory",
    "Overrun",
    "PermissionDenied",
    "ProtocolError",
    "Quarantined",
    "ResourceExhausted",
    "SessionLost",
    "Unavailable",
    "Unreachable",
    "Unsupported",
    "WorkerLost",
]
