"""Requests that wait for their answers, by number. What a connection of either kind keeps; no input or output."""

from __future__ import annotations

import threading
from typing import Protocol

from google.protobuf.message import DecodeError

from pappus import errors
from pappus._proto import pappus_pb2 as v1
from pappus._wire import MAX_MESSAGE_BYTES, MAX_MESSAGE_FDS
from pappus.errors import Error, InvalidArgument, ProtocolError


class Memory(Protocol):
    """Shared memory that a call uses."""

    def taint(self) -> None:
        """The call was given up, and may still write there."""


class Waiting:
    """A request that was sent, and its answer once that is there."""

    __slots__ = ("answer", "error", "id", "memory", "sleepers")

    def __init__(self, id: int, memory: Memory | None) -> None:
        self.id = id
        # Kept until the answer comes, even if nobody asks for it any more: until then a worker may write there.
        self.memory = memory
        self.answer: v1.Response | None = None
        self.error: Error | None = None
        # Of threads that wait for this answer while another one reads.
        self.sleepers: tuple[threading.Lock, ...] = ()

    def done(self) -> bool:
        """Whether it has an answer, or never will."""
        return self.answer is not None or self.error is not None

    def outcome(self) -> v1.Response:
        """The answer, or an exception for what went wrong."""
        if self.error is not None:
            raise errors.fresh(self.error)
        assert self.answer is not None
        return self.answer


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


def settle(waiting: Waiting | None, answer: v1.Response) -> Waiting:
    """Gives a request its answer."""
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
        waiting.answer = answer
    # The memory is the answer's now, or nobody's.
    waiting.memory = None
    return waiting
