"""What a server may send: everything that is no answer ends in an error that says so."""

from __future__ import annotations

import pickle
import random
import socket
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pappus
from fixture import Supervisor, pretender
from pappus import _wire, v1
from pappus.errors import from_answer

Peer = socket.socket


def receive(peer: Peer) -> v1.Request:
    def exactly(size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = peer.recv(size - len(found))
            assert piece
            found += piece
        return found

    (length,) = struct.unpack("<I", exactly(8)[:4])
    return v1.Request.FromString(exactly(length))


def greet(peer: Peer) -> None:
    assert peer.recv(16, socket.MSG_WAITALL) == _wire.GREETING
    peer.sendall(_wire.GREETING)


def reply(**body: Any) -> Callable[[Peer], None]:
    def answer(peer: Peer) -> None:
        response = v1.Response(id=receive(peer).id, **body)
        peer.sendall(_wire.frame(response.SerializeToString()))

    return answer


def raw(data: bytes) -> Callable[[Peer], None]:
    def answer(peer: Peer) -> None:
        receive(peer)
        peer.sendall(data)

    return answer


def fed(decoder: _wire.Decoder, data: bytes) -> list[bytes]:
    """The messages that are complete with these bytes."""
    assert decoder.receive(lambda _: data, len(data)) == bool(data)
    messages = []
    while (message := decoder.message()) is not None:
        messages.append(message)
        decoder.taken()
    return messages


def test_messages_are_the_same_however_they_are_cut() -> None:
    messages = [b"", b"a", bytes(300), b"xyz"]
    stream = b"".join(_wire.frame(message) for message in messages)
    for step in range(1, len(stream) + 1):
        decoder = _wire.Decoder()
        got = [m for at in range(0, len(stream), step) for m in fed(decoder, stream[at : at + step])]
        assert got == messages


def test_random_bytes_are_messages_or_an_error() -> None:
    chance = random.Random(7)
    for _ in range(2000):
        decoder = _wire.Decoder()
        try:
            for _ in range(4):
                data = chance.randbytes(chance.randrange(40))
                if chance.random() < 0.7:
                    data = struct.pack("<II", chance.randrange(20), 0) + data
                fed(decoder, data)
        except pappus.ProtocolError:
            pass


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n"[:16], "does not belong to a Pappus"),
        (b"PAPPUS\r\n" + bytes(8), "another version"),
        (b"PAPPUS\r\n" + struct.pack("<HHI", 1, 1, 1), "does not belong"),
        (b"PAPPUS\r\n" + struct.pack("<HHI", 1, 2, 0), "does not belong"),
        (b"PAPPUS", "closed the connection"),
        (b"", "closed the connection"),
    ],
)
def test_greetings_are_judged(greeting: bytes, words: str) -> None:
    with pretender(lambda peer: peer.sendall(greeting)) as path, pytest.raises(pappus.Error, match=words):
        pappus.connect(path)


HUGE = struct.pack("<II", (4 << 20) + 1, 0)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (HUGE, "announces a message of 4194305 bytes"),
        (b"\0\0\0\0\x01\0\0\0", "must be zero"),
        (b"\0\0\0\0\0\0\0\x01", "must be zero"),
        (_wire.frame(b"\xff\xff\xff"), "cannot be read"),
        (_wire.frame(v1.Response(id=99, done=v1.Done()).SerializeToString()), "answered request 99"),
        (_wire.frame(v1.Response(id=1).SerializeToString()), "empty answer"),
        (_wire.frame(v1.Response(id=1, done=v1.Done()).SerializeToString()), "answered with done where status is expected"),
        (_wire.frame(v1.Response(id=1, status=v1.Status()).SerializeToString())[:-1], "closed the connection"),
        (b"", "closed the connection"),
    ],
)
def test_answers_that_are_none_are_refused(data: bytes, words: str) -> None:
    with pretender(greet, raw(data)) as path, pappus.connect(path) as client, pytest.raises(pappus.Error, match=words):
        client.status()


def test_an_error_of_the_connection_is_told_to_all_that_wait() -> None:
    error = v1.Error(code=v1.PERMISSION_DENIED, message="not you")
    last_words = _wire.frame(v1.Response(error=error).SerializeToString())
    with pretender(greet, raw(last_words)) as path, pappus.connect(path) as client:
        for _ in range(2):
            with pytest.raises(pappus.PermissionDenied, match="not you"):
                client.status()
        assert client.closed


INFO = v1.FunctionInfo(name="f", inputs=["A"], outputs=[v1.OutputInfo(name="B", dtype="f32")])
CONFIG = '{"blueprint": {"buffers": {"B": {"Sizeof": "A"}}, "types": {"B": {"dtype": "f32"}}}}'


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (v1.OutputValue(name="B", bytes=16, dtype="f32", shape=[4]), "16 bytes instead of 8"),
        (v1.OutputValue(name="B", bytes=1 << 63, dtype="f32", shape=[1 << 61]), "bytes instead of 8"),
        (v1.OutputValue(name="B", bytes=8, dtype="f32", shape=[3]), r"no f32 of \[3\]"),
        (v1.OutputValue(name="B", bytes=8, dtype="f32", shape=[1] * 100), "no f32 of"),
        (v1.OutputValue(name="B", bytes=8, dtype="f32", shape=[]), "no f32 of"),
        (v1.OutputValue(name="B", bytes=8, dtype="f33", shape=[2]), "'f33', a type that is not known"),
        (v1.OutputValue(name="C", bytes=8, dtype="f32", shape=[2]), "output 'C' in the place of 'B'"),
    ],
)
def test_outputs_must_be_what_was_asked_for(output: v1.OutputValue, words: str) -> None:
    shown = v1.FunctionInfo(config=CONFIG)
    shown.MergeFrom(INFO)
    opened = v1.ArenaOpened(arena=1, bytes=1 << 20)
    answers = [reply(function=shown), reply(arena=opened), reply(invoked=v1.Invoked(outputs=[output]))]
    with pretender(greet, *answers) as path, pappus.connect(path) as client:
        function = client.function("f")
        with pytest.raises(pappus.ProtocolError, match=words):
            function(np.zeros(2, np.float32))


@pytest.mark.parametrize(
    "config",
    [
        "",
        "{",
        "[]",
        '{"blueprint": 1}',
        '{"blueprint": {"buffers": [], "types": {"B": 7}}}',
        '{"blueprint": {"buffers": {"B": {"Sizeof": "C"}, "C": {"Sizeof": "B"}}}}',
        '{"blueprint": {"buffers": {"B": {"Sum": {"Absolute": 1}}}}}',
        '{"blueprint": {"buffers": {"B": {"CeilDiv": [{"Absolute": 1}, {"Absolute": 0}]}}}}',
        '{"blueprint": {"buffers": {"B": {"Absolute": -1}}}}',
        '{"blueprint": {"buffers": {"B": {"Absolute": 18446744073709551616}}}}',
        '{"blueprint": {"buffers": {"B": {"NewerThanThis": 1}}}}',
        "[" * 100_000,
        '{"blueprint": {"buffers": {"B": ' + '{"Sum": [' * 5000 + '{"Absolute": 1}' + "]}" * 5000 + "}}}",
    ],
    ids=range(13),
)
def test_a_configuration_that_cannot_be_read_leaves_sizes_open(config: str) -> None:
    shown = v1.FunctionInfo(config=config)
    shown.MergeFrom(INFO)
    output = v1.OutputValue(name="B", bytes=8, dtype="f32", shape=[2])
    opened = v1.ArenaOpened(arena=1, bytes=1 << 20)
    answers = [reply(function=shown), reply(arena=opened), reply(invoked=v1.Invoked(outputs=[output]))]
    with pretender(greet, *answers) as path, pappus.connect(path) as client:
        assert client.function("f")(np.zeros(2, np.float32)).tolist() == [0, 0]


def test_lists_that_do_not_go_on_end() -> None:
    page = v1.FunctionList(functions=[v1.FunctionInfo(name="a")], more=True)
    with pretender(greet, reply(functions=page), reply(functions=page)) as path, pappus.connect(path) as client:
        with pytest.raises(pappus.ProtocolError, match="do not go on"):
            client.functions()


def test_a_supervisor_that_dies_is_told_from_one_that_never_was(start: Callable[..., Supervisor]) -> None:
    supervisor = start()
    client = supervisor.connect()
    supervisor.kill()
    with pytest.raises(pappus.ConnectionLost) as caught:
        client.status()
    assert caught.value.retryable
    assert caught.value.code is pappus.Code.UNAVAILABLE
    assert client.closed
    with pytest.raises(pappus.Unreachable, match="start `pappus-supervisor "):
        supervisor.connect()
    with pytest.raises(pappus.Unreachable, match="a socket's can have 107"):
        pappus.connect("/" + "x" * 200)
    client.close()
    with pytest.raises(pappus.ConnectionLost):
        client.status()


def test_errors_say_what_callers_need_and_travel_between_processes() -> None:
    told = v1.Error(code=v1.RESOURCE_EXHAUSTED, message="full", place="inputs.A", retryable=True, retry_after_ms=250)
    error = from_answer(told)
    assert isinstance(error, pappus.ResourceExhausted)
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert (type(same), same.code, same.retryable) == (pappus.ResourceExhausted, "RESOURCE_EXHAUSTED", True)
        assert str(same) == "at inputs.A: full [RESOURCE_EXHAUSTED] (try again in 0.25 s)"
        assert same.retry_after == 0.25
    newer = from_answer(v1.Error(code=1000))  # type: ignore[arg-type]
    assert type(newer) is pappus.Error
    assert {code.value for code in pappus.Code} == set(v1.Code.keys())
