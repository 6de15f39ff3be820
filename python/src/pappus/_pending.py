"""Requests that wait for their answers, by number. What a connection of either kind keeps; no input or output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError

from pappus import errors
from pappus._proto import pappus_pb2 as v1
from pappus._wire import MAX_MESSAGE_BYTES, MAX_MESSAGE_FDS, Decoder
from pappus.errors import Error, InvalidArgument, ProtocolError, Unavailable


class Memory(Protocol):
    """Shared memory that a call uses."""

    def taint(self) -> None:
        """The call was given up, and may still write there."""


# Seconds that a supervisor may take to answer what it does at once.
ANSWER_SECONDS = 30.0
# No wait of the system's takes more.
_LONGEST_SECONDS = 1e6


class Waiting:
    """A request that was sent, and its answer once that is there."""

    __slots__ = ("answer", "arrived", "error", "id", "limit", "memory")

    def __init__(
        self,
        id: int,
        memory: Memory | None = None,
        arrived: Callable[[v1.Response], None] | None = None,
        limit: float | None = None,
    ) -> None:
        self.id = id
        # Kept until the answer comes, even if nobody asks for it any more: until then a worker may write there.
        self.memory = memory
        # Takes what the answer brings, even if nobody asks for it any more. It may be called twice.
        self.arrived = arrived
        # Seconds within which a supervisor that is well answers it.
        self.limit = limit
        self.answer: v1.Response | None = None
        self.error: Error | None = None

    def done(self) -> bool:
        """Whether it has an answer, or never will."""
        return self.answer is not None or self.error is not None

    def outcome(self) -> v1.Response:
        """The answer, or an exception for what went wrong."""
        if self.error is not None:
            raise errors.fresh(self.error)
        assert self.answer is not None
        return self.answer


W = TypeVar("W", bound=Waiting)


class Requests(Generic[W]):
    """The requests of a connection that wait for their answers, and what was received of these.

    It stands an exception of a signal handler between any two steps, as the decoder does.
    """

    def __init__(self) -> None:
        self.decoder = Decoder()
        self.waiting: dict[int, W] = {}
        # The last message that was given to its request.
        self._given: tuple[bytes, W] | None = None

    def next(self) -> W | None:
        """Gives the next answer that was received to its request. It stays the next one until :meth:`taken`."""
        message = self.decoder.message()
        if message is None:
            return None
        if self._given is None or self._given[0] is not message:
            answer = decode(message)
            self._given = message, settle(self.waiting.get(answer.id), answer)
        waiting = self._given[1]
        self.waiting.pop(waiting.id, None)
        return waiting

    def taken(self) -> None:
        """Goes on to the next answer."""
        self.decoder.taken()
        self._given = None

    def fail(self, why: Error) -> None:
        """Nothing more will be received: all that wait get this error."""
        for waiting in self.waiting.values():
            if not waiting.done():
                waiting.error = why


def bounded(seconds: float) -> float:
    """A time as long as can be waited for."""
    return max(0.0, min(seconds, _LONGEST_SECONDS))


def silent(limit: float | None) -> Unavailable:
    """The error of a supervisor that is there and does not answer."""
    return Unavailable(
        f"the supervisor does not answer: nothing came for {limit:g} s. Its process is stopped, swaps, or is in a debugger: "
        "`ps -C pappus-supervisor -o pid,stat,wchan` shows T or t where it is stopped; its log may say more. Give it longer "
        "with `patience`",
        retryable=True,
    )


def encode(request: v1.Request, descriptors: int) -> bytes:
    """A request as bytes, if it may be sent."""
    message = request.SerializeToString()
    if len(message) > MAX_MESSAGE_BYTES or descriptors > MAX_MESSAGE_FDS:
        raise InvalidArgument(
            f"a request of {len(message)} bytes with {descriptors} descriptors: at most {MAX_MESSAGE_BYTES} bytes and "
            f"{MAX_MESSAGE_FDS} descriptors fit; put data into an arena"
        )
    return message


def decode(message: bytes) -> v1.Response:
    """An answer; an error of the whole connection is raised."""
    try:
        answer = v1.Response.FromString(message)
    except DecodeError as why:
        raise ProtocolError(f"the supervisor sent an answer that cannot be read: {why}") from None
    if answer.id == 0 and answer.WhichOneof("body") == "error":
        raise errors.from_answer(answer.error)
    return answer


def settle(waiting: W | None, answer: v1.Response) -> W:
    """Gives a request its answer. To do so twice changes nothing."""
    if waiting is None:
        raise ProtocolError(f"the supervisor answered request {answer.id}, which was not sent or is answered already")
    kind = answer.WhichOneof("body")
    if kind == "error":
        error = answer.error
        if waiting.memory is not None and error.code in errors.MAY_STILL_WRITE:
            waiting.memory.taint()
        waiting.error = errors.from_answer(error)
    elif kind is None:
        waiting.error = ProtocolError("the supervisor sent an empty answer, or one of a newer version")
    else:
        if waiting.arrived is not None:
            waiting.arrived(answer)
        waiting.answer = answer
    # The memory is the answer's now, or nobody's.
    waiting.memory = None
    return waiting
