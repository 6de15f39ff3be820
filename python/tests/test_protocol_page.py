"""docs/protocol.md is enough to write a client from, and has what a supervisor says."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

import page_client as page
from fixture import KERNELS, REPOSITORY, VEC_ADD, Supervisor
from page_client import Connection, Refused, data, fields, number

PAGE = (REPOSITORY / "docs/protocol.md").read_text()
SCHEMA = (REPOSITORY / "proto/pappus.proto").read_text()
LINALG = (KERNELS / "built/linalg.wasm").read_bytes()
A, B = struct.pack("<3f", 1, 2, 3), struct.pack("<3f", 10, 20, 30)
SUM = struct.pack("<3f", 11, 22, 33)


@pytest.fixture(scope="module")
def path() -> Iterator[str]:
    """The socket of a supervisor that nobody used before."""
    running = Supervisor()
    yield running.path
    running.stop()


@pytest.fixture
def connection(path: str) -> Iterator[Connection]:
    opened = Connection(path)
    yield opened
    opened.close()


@pytest.fixture
def vec_add(connection: Connection) -> str:
    connection.add_function("vec_add", VEC_ADD.read_text(), {"linalg": LINALG})
    return "vec_add"


# ---------------------------------------------------------------- the worked example


def example() -> list[tuple[str, bytes]]:
    """What is sent (``>``) and what is answered (``<``), in order."""
    said: list[tuple[str, bytes]] = []
    for block in re.findall(r"```hex\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            match = re.fullmatch(r"([><]?) *((?:[0-9a-f]{2} )*[0-9a-f]{2})(?: {2,}.*)?", line)
            assert match, line
            content = bytes.fromhex(match[2])
            if match[1]:
                said.append((match[1], content))
            else:
                said[-1] = (said[-1][0], said[-1][1] + content)
    return said


def without_times(frame: bytes) -> object:
    """A frame's message without the times of a call, and without lengths, which depend on them."""
    response = fields(frame[8:])
    if not response[page.INVOKED]:
        return frame
    invoked = fields(response[page.INVOKED][0])
    assert fields(invoked.pop(2)[0]).keys() <= schema_of("Timings").keys()
    return response[1], invoked


def test_the_worked_example_is_what_a_supervisor_says(path: str) -> None:
    said = example()
    assert [mark for mark, _ in said] == [">", "<"] * 5
    peer = page.open_socket(path)
    with peer, peer.makefile("rb") as reader:
        for (_, sent), (_, expected) in zip(said[::2], said[1::2], strict=True):
            peer.sendall(sent)
            if sent == page.GREETING:
                assert reader.read(16) == expected
                continue
            for frame in (sent, expected):
                assert int.from_bytes(frame[:4], "little") == len(frame) - 8
            header = reader.read(8)
            got = header + reader.read(int.from_bytes(header[:4], "little"))
            assert without_times(got) == without_times(expected)


# ---------------------------------------------------------------- the tables


def schema_of(message: str) -> dict[int, tuple[str, str]]:
    """The fields of a message in pappus.proto: name and type by number."""
    match = re.search(rf"^message {message} {{\n(.*?)^}}", SCHEMA, re.DOTALL | re.MULTILINE)
    assert match, message
    found = re.findall(r"^ +(repeated )?([\w.]+) (\w+) = (\d+);", match[1], re.MULTILINE)
    return {int(at): (name, f"list of {kind}" if many else kind) for many, kind, name, at in found}


def tables() -> dict[str, dict[int, tuple[str, str]]]:
    """The page's tables of messages."""
    found: dict[str, dict[int, tuple[str, str]]] = {}
    for name, rows in re.findall(r"^\| `(\w+)` \| type \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        matches = [re.match(r"\| (\d+) `(\w+)`(?: \*)? \| ([^|]+) \|", row) for row in rows.splitlines()]
        found[name] = {int(match[1]): (match[2], match[3]) for match in matches if match}
        assert len(found[name]) == len(matches), name
    return found


def test_every_message_of_the_page_has_all_fields_of_the_schema() -> None:
    found = tables()
    assert len(found) > 25
    envelopes = {name: found.pop(name) for name in ("Request", "Response")}
    for message, rows in found.items():
        assert rows == schema_of(message), message
    # The types that it mentions are on the page, or it says that they are in the schema.
    mentioned = {kind.removeprefix("list of ") for rows in found.values() for _, kind in rows.values()}
    plain = {"string", "bytes", "bool", "uint32", "uint64", "fixed64"}
    elsewhere = {"WeightInfo", "ModuleInfo", "Quarantine", "Registration", "Code"}
    assert mentioned <= plain | elsewhere | found.keys()
    # Requests and answers have a table of their own.
    (rows,) = re.findall(r"^\| number, name \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    requests, answers = dict(envelopes["Request"]), dict(envelopes["Response"])
    for row in rows.splitlines():
        _, names, kind, _, answer, _ = (cell.strip() for cell in row.split("|"))
        for at, name in re.findall(r"(\d+) `(\w+)`", names):
            requests[int(at)] = (name, kind or schema_of("Request")[int(at)][1])
        for at, name, kind in re.findall(r"(\d+) `(\w+)`: (\w+)", answer):
            answers[int(at)] = (name, kind)
    assert requests == schema_of("Request")
    assert answers.items() <= schema_of("Response").items()


def test_every_code_is_on_the_page() -> None:
    match = re.search(r"^enum Code {\n(.*?)^}", SCHEMA, re.DOTALL | re.MULTILINE)
    assert match
    codes = {int(at): name for name, at in re.findall(r"^ +(\w+) = (\d+);", match[1], re.MULTILINE)}
    del codes[0]
    (table,) = re.findall(r"^\| `Code` .*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert {int(at): name for at, name in re.findall(r"\| (\d+) \| `(\w+)` (?=\|)", table)} == codes


# ---------------------------------------------------------------- what a client does


def test_a_function_is_registered_described_and_called_with_inline_bytes(connection: Connection) -> None:
    config = VEC_ADD.read_text()
    added = connection.add_function("called_inline", config, {"linalg": LINALG})
    assert (added[32], connection.add_function("called_inline", config, {"linalg": LINALG})[32]) == ([1], [3])
    shown = connection.ask(page.SHOW_FUNCTION, data(1, "called_inline"), page.FUNCTION)
    assert (shown[5], [fields(output)[1] for output in shown[6]]) == ([b"A", b"B"], [[b"C"]])
    assert json.loads(shown[7][0]) == json.loads(config)
    kinds = [fields(kind) for kind in shown[10]]
    assert [kind[1] for kind in kinds] == [[b"f32"], [b"f32"]]
    call = page.invocation("called_inline", {"B": page.inline(B), "A": page.inline(A)}, {"C": None})
    call += number(4, 20_000_000_000) + page.fixed(5, shown[11][0])
    invoked = connection.ask(page.INVOKE, call, page.INVOKED)
    (output,) = map(fields, invoked[1])
    assert (output[1], output[2], output[3], output[4]) == ([b"C"], [12], [SUM], [b"f32"])
    assert page.numbers(output[5][0]) == [3]
    assert (invoked[3], invoked[4]) == ([b"cpu"], [20_000_000_000])
    stale = call[:-8] + struct.pack("<Q", shown[11][0] ^ 1)
    with pytest.raises(Refused) as refused:
        connection.ask(page.INVOKE, stale, page.INVOKED)
    assert (refused.value.code, refused.value.place) == (1, "function_version")


def test_a_call_through_an_arena_and_a_memfd(connection: Connection, vec_add: str) -> None:
    made = page.arena_memfd(1 << 16)
    opened = connection.ask(page.OPEN_ARENA, b"", page.ARENA, made)
    arena = opened[1][0]
    assert opened[2] == [1 << 16]
    with mmap.mmap(made, 1 << 16) as memory:
        os.close(made)
        # A in two pieces, B in a memfd of its own, and C in a place with room to spare.
        memory[100:108], memory[200:204] = A[:8], A[8:]
        first = data(2, data(2, page.region(arena, 100, 8))) + data(2, data(2, page.region(arena, 200, 4)))
        array = data(3, data(1, "f32") + data(2, page.varint(3)))
        sealed = page.memfd(bytes(5) + B)
        second = data(2, data(3, number(1, 0) + number(2, 5) + number(3, 12)))
        call = data(1, vec_add) + data(2, data(1, "A") + first + array) + data(2, data(1, "B") + second)
        call += data(3, data(1, "C") + data(2, page.region(arena, 4096, 64)))
        invoked = connection.ask(page.INVOKE, call, page.INVOKED, sealed)
        os.close(sealed)
        output = fields(invoked[1][0])
        assert (output[2], output[3]) == ([12], [])
        assert memory[4096 : 4096 + 16] == SUM + bytes(4)
        # Too small a place: how large it must be is said before anything runs.
        call = page.invocation(vec_add, {"A": page.inline(A), "B": page.inline(B)}, {"C": page.region(arena, 0, 8)})
        with pytest.raises(Refused) as refused:
            connection.ask(page.INVOKE, call, page.INVOKED)
        assert (refused.value.code, refused.value.place, refused.value.output_bytes) == (1, "output C", 12)
    connection.ask(page.CLOSE_ARENA, number(1, arena), page.DONE)
    with pytest.raises(Refused) as refused:
        connection.ask(page.CLOSE_ARENA, number(1, arena), page.DONE)
    assert refused.value.code == 2


def test_errors_have_a_code_and_a_place_and_leave_the_connection(connection: Connection, vec_add: str) -> None:
    blueprint = {"inputs": ["A"], "buffers": {"B": {"Sizeof": "C"}}, "outputs": ["B"], "control_flow": []}
    config = json.dumps({"modules": [], "kernels": [], "blueprint": blueprint})
    with pytest.raises(Refused) as refused:
        connection.add_function("wrong", config, {})
    assert (refused.value.code, refused.value.place) == (1, "blueprint.buffers.B.Sizeof")
    assert re.match(r"1:\d+: ", refused.value.message)
    with pytest.raises(Refused) as refused:
        connection.ask(page.SHOW_FUNCTION, data(1, "absent"), page.FUNCTION)
    assert refused.value.code == 2
    nowhere = page.invocation(vec_add, {"A": page.inline(A), "B": data(2, page.region(99, 0, 12))}, {"C": None})
    with pytest.raises(Refused) as refused:
        connection.ask(page.INVOKE, nowhere, page.INVOKED)
    assert (refused.value.code, refused.value.place) == (1, "input B")
    call = page.invocation(vec_add, {"A": page.inline(A), "B": page.inline(B)}, {})
    assert fields(connection.ask(page.INVOKE, call, page.INVOKED)[1][0])[3] == []


def test_a_call_is_given_up_while_others_are_answered(connection: Connection, vec_add: str) -> None:
    jacobi = json.loads((KERNELS / "configs/jacobi.json").read_text())
    (module,) = jacobi["modules"]
    wasm = (KERNELS / "configs" / module["path"]).read_bytes()
    connection.add_function("endless", json.dumps(jacobi), {module["module_name"]: wasm})
    one = struct.pack("<64f", *[1.0] * 64)
    unit = b"".join(struct.pack("<64f", *[float(row == column) for column in range(64)]) for row in range(64))
    inputs = {"A": unit, "b": one, "x": one, "steps": struct.pack("<q", 900_000)}
    shapes = {"A": [64, 64], "b": [64], "x": [64], "steps": [1]}
    call = data(1, "endless")
    for name, content in inputs.items():
        dtype = "i64" if name == "steps" else "f32"
        array = data(1, dtype) + data(2, b"".join(map(page.varint, shapes[name])))
        call += data(2, data(1, name) + data(2, page.inline(content)) + data(3, array))
    began = time.monotonic()
    endless = connection.send(page.INVOKE, call)
    call = page.invocation(vec_add, {"A": page.inline(A), "B": page.inline(B)}, {"C": None})
    others = [connection.send(page.INVOKE, call) for _ in range(3)]
    for other in reversed(others):
        assert fields(connection.answer(other, page.INVOKED)[1][0])[3] == [SUM]
    connection.ask(page.CANCEL, number(1, endless), page.DONE)
    with pytest.raises(Refused) as refused:
        connection.answer(endless, page.INVOKED)
    assert refused.value.code == 9
    assert time.monotonic() - began < 20
    # Nothing is left to give up.
    connection.ask(page.CANCEL, number(1, endless), page.DONE)
    assert connection.early == {}


def test_requests_may_follow_the_greeting_at_once_and_answers_an_end(path: str) -> None:
    with page.open_socket(path) as peer:
        status = page.frame(number(1, 7) + data(15, b""))
        peer.sendall(page.GREETING + status + page.frame(number(1, 8) + data(22, b"")))
        peer.shutdown(socket.SHUT_WR)
        with peer.makefile("rb") as reader:
            got = reader.read()
    assert got[:16] == page.GREETING
    ids, at = [], 16
    while at < len(got):
        length = int.from_bytes(got[at : at + 4], "little")
        ids += fields(got[at + 8 : at + 8 + length])[1]
        at += 8 + length
    assert sorted(ids) == [7, 8]


def end_of(peer: socket.socket) -> bytes:
    """All that comes until the connection is closed."""
    got = b""
    try:
        while piece := peer.recv(4096):
            got += piece
    except ConnectionResetError:
        pass
    return got


STATUS = number(1, 1) + data(15, b"")


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("<II", (4 << 20) + 1, 0),
        struct.pack("<IBBH", 0, 9, 0, 0),
        struct.pack("<IBBH", len(STATUS), 0, 1, 0) + STATUS,
        page.frame(STATUS, 1),
        page.frame(b"\xff\xff\xff"),
        page.frame(number(13, 1)),
    ],
    ids=["too long", "too many descriptors", "no zeros", "a descriptor that did not come", "no protobuf", "another kind"],
)
def test_a_violation_ends_the_connection_without_an_answer(path: str, sent: bytes) -> None:
    connection = Connection(path)
    connection.peer.sendall(sent)
    assert end_of(connection.peer) == b""
    connection.close()


def test_what_ends_a_connection_ends_no_other(path: str, connection: Connection) -> None:
    other = Connection(path)
    connection.peer.sendall(page.frame(b"\xff"))
    assert end_of(connection.peer) == b""
    with pytest.raises(Refused):
        other.ask(page.SHOW_FUNCTION, data(1, "absent"), page.FUNCTION)
    other.close()


@pytest.mark.parametrize(
    ("greeting", "answer"),
    [
        (b"GET / HTTP/1.1\r\n", b""),
        (b"PAPPUS\r\n" + struct.pack("<HHI", 1, 1, 1), b""),
        (b"PAPPUS\r\n" + struct.pack("<HHI", 2, 9, 0), b"PAPPUS\r\n" + bytes(8)),
    ],
    ids=["another protocol", "no zeros", "another version"],
)
def test_a_greeting_that_is_none_ends_the_connection(path: str, greeting: bytes, answer: bytes) -> None:
    with page.open_socket(path) as peer:
        peer.sendall(greeting)
        assert end_of(peer) == answer


def test_a_descriptor_with_the_greeting_ends_the_connection(path: str) -> None:
    with page.open_socket(path) as peer:
        made = page.memfd(b"x")
        try:
            socket.send_fds(peer, [page.GREETING], [made])
        except PermissionError:
            # The kernel refused it: nobody had accepted the connection yet.
            return
        finally:
            os.close(made)
        assert end_of(peer) == b""


def test_a_gateway_acts_for_tenants_in_both_ways(start: Callable[..., Supervisor]) -> None:
    token = "0123456789abcdef0123456789abcdef"
    own = os.geteuid()
    config = f'gateways = [{own}]\nunknown-tenants = "refuse"\n'
    config += f'[tenants.acme]\ntoken-sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n'
    path = start(config).path
    identity = '{"modules":[],"kernels":[],"blueprint":{"inputs":["A"],"buffers":{},"outputs":["A"],"control_flow":[]}}'
    one = Connection(path)
    one.ask(18, data(1, token), page.DONE)
    one.add_function("mine", identity, {})
    one.close()
    many = Connection(path)
    call = number(1, 1) + data(page.INVOKE, page.invocation("mine", {"A": page.inline(b"hi")}, {"A": None}))
    many.peer.sendall(page.frame(call + data(27, token)))
    assert fields(many.answer(1, page.INVOKED)[1][0])[3] == [b"hi"]
    # A wrong token is a refusal there, and ends a connection that it began.
    many.peer.sendall(page.frame(call + data(27, "wrong")) + page.frame(call + data(27, token)))
    with pytest.raises(Refused) as refused:
        many.answer(1, page.INVOKED)
    assert (refused.value.code, refused.value.place) == (4, "token")
    many.answer(1, page.INVOKED)
    many.close()
    wrong = Connection(path)
    with pytest.raises(Refused) as refused:
        wrong.ask(18, data(1, "wrong"), page.DONE)
    assert (refused.value.code, refused.value.place) == (4, "token")
    assert end_of(wrong.peer) == b""
    wrong.close()
