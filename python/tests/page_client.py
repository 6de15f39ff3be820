"""A client written from docs/protocol.md alone, with the standard library: whoever changes it changes the page first."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections import defaultdict
from typing import Any

GREETING = b"PAPPUS\r\n" + struct.pack("<HHI", 1, 1, 0)
ARENA_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
FINAL_SEALS = ARENA_SEALS | fcntl.F_SEAL_WRITE

# Numbers of requests.
PUT_BLOB, ADD_FUNCTION, SHOW_FUNCTION, OPEN_ARENA, CLOSE_ARENA, INVOKE, CANCEL = 2, 7, 10, 11, 12, 13, 14
# Numbers of answers.
ERROR, DONE, BLOB, FUNCTION, ARENA, INVOKED = 2, 3, 4, 6, 9, 10

Fields = dict[int, list[Any]]


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field * 8) + varint(value)


def fixed(field: int, value: int) -> bytes:
    return varint(field * 8 + 1) + struct.pack("<Q", value)


def data(field: int, value: bytes | str) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return varint(field * 8 + 2) + varint(len(content)) + content


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(message: bytes) -> Fields:
    """The fields of a message by their numbers: integers as integers, all else as bytes."""
    found: Fields = defaultdict(list)
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        kind = key % 8
        if kind == 0:
            value, at = read_varint(message, at)
            found[key // 8].append(value)
        elif kind == 1:
            found[key // 8].append(int.from_bytes(message[at : at + 8], "little"))
            at += 8
        elif kind == 5:
            found[key // 8].append(int.from_bytes(message[at : at + 4], "little"))
            at += 4
        else:
            assert kind == 2
            length, at = read_varint(message, at)
            found[key // 8].append(message[at : at + length])
            at += length
    assert at == len(message)
    return found


def numbers(packed: bytes) -> list[int]:
    found, at = [], 0
    while at < len(packed):
        value, at = read_varint(packed, at)
        found.append(value)
    return found


class Refused(Exception):
    def __init__(self, error: Fields) -> None:
        self.code = error[1][0]
        self.message = error[2][0].decode()
        self.place = error[3][0].decode() if error[3] else ""
        self.output_bytes = error[6][0] if error[6] else 0
        super().__init__(self.code, self.message, self.place)


def frame(message: bytes, descriptors: int = 0) -> bytes:
    return struct.pack("<IB3x", len(message), descriptors) + message


def memfd(content: bytes) -> int:
    """A memfd that can never change."""
    made = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    assert os.write(made, content) == len(content)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, FINAL_SEALS)
    return made


def arena_memfd(size: int) -> int:
    made = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(made, size)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, ARENA_SEALS)
    return made


def open_socket(path: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(60)
    peer.connect(path)
    return peer


class Connection:
    def __init__(self, path: str) -> None:
        self.peer = open_socket(path)
        self.peer.sendall(GREETING)
        assert self.exactly(16) == GREETING
        self.last = 0
        self.early: dict[int, Fields] = {}

    def close(self) -> None:
        self.peer.close()

    def exactly(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            piece = self.peer.recv(size - len(got))
            if not piece:
                raise EOFError
            got += piece
        return got

    def send(self, request: int, body: bytes, *descriptors: int) -> int:
        self.last += 1
        whole = frame(number(1, self.last) + data(request, body), len(descriptors))
        sent = socket.send_fds(self.peer, [whole], list(descriptors)) if descriptors else 0
        self.peer.sendall(whole[sent:])
        return self.last

    def receive(self) -> Fields:
        header = self.exactly(8)
        assert header[4:] == bytes(4)
        return fields(self.exactly(int.from_bytes(header[:4], "little")))

    def answer(self, request: int, kind: int) -> Fields:
        """The answer to a request, whenever it comes."""
        while request not in self.early:
            response = self.receive()
            self.early[response[1][0]] = response
        response = self.early.pop(request)
        if response[ERROR]:
            raise Refused(fields(response[ERROR][0]))
        return fields(response[kind][0])

    def ask(self, request: int, body: bytes, kind: int, *descriptors: int) -> Fields:
        return self.answer(self.send(request, body, *descriptors), kind)

    def put(self, content: bytes) -> bytes:
        """Stores bytes; their name."""
        if len(content) < 1 << 20:
            return self.ask(PUT_BLOB, data(1, content), BLOB)[1][0]
        made = memfd(content)
        stored = self.ask(PUT_BLOB, b"", BLOB, made)
        os.close(made)
        return stored[1][0]

    def add_function(self, name: str, config: str, modules: dict[str, bytes]) -> Fields:
        body = data(1, name) + data(2, self.put(config.encode()))
        for module, wasm in modules.items():
            variant = data(1, "wasm") + data(3, self.put(wasm))
            body += data(3, data(1, module) + data(2, variant))
        return self.ask(ADD_FUNCTION, body, FUNCTION)


def inline(content: bytes) -> bytes:
    return data(1, content)


def region(arena: int, offset: int, size: int) -> bytes:
    return number(1, arena) + number(2, offset) + number(3, size)


def invocation(function: str, inputs: dict[str, bytes], outputs: dict[str, bytes | None]) -> bytes:
    """Inputs by their items, outputs by their regions, or nothing where they come in the answer."""
    body = data(1, function)
    for name, item in inputs.items():
        body += data(2, data(1, name) + data(2, item))
    for name, place in outputs.items():
        body += data(3, data(1, name) + (data(2, place) if place else b""))
    return body
