"""Calls: what can be an input, where outputs go, and how a call ends."""

from __future__ import annotations

import array
import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pappus
from fixture import KERNELS, Supervisor

Echo = Callable[..., pappus.Function]
A = np.arange(6, dtype=np.float32)


def test_inputs_are_given_in_order_or_by_name(vec_add: pappus.Function) -> None:
    for result in (vec_add(A, 2 * A), vec_add(A, B=2 * A), vec_add(B=2 * A, A=A)):
        np.testing.assert_array_equal(result, 3 * A)
        assert result.dtype == np.float32
        assert result.flags.writeable


@pytest.mark.parametrize(
    ("args", "named", "words"),
    [
        ((A, A, A), {}, "3 inputs are given, vec_add has 2"),
        ((A,), {}, "input 'B' is missing"),
        ((A, A), {"A": A}, "input 'A' is given twice|3 inputs"),
        ((A,), {"C": A}, "no input 'C'"),
        ((), {"A": A}, "input 'B' is missing"),
    ],
)
def test_wrong_inputs_are_refused_by_name(vec_add: pappus.Function, args: Any, named: Any, words: str) -> None:
    with pytest.raises(pappus.InvalidArgument, match=words):
        vec_add(*args, **named)


def test_another_type_is_refused_with_both(vec_add: pappus.Function) -> None:
    with pytest.raises(pappus.InvalidArgument, match=r"f64\[6\] came, f32\[…\] is expected") as caught:
        vec_add(A, A.astype(np.float64))
    assert caught.value.place == "B"
    with pytest.raises(ValueError, match="object"):
        vec_add(np.array([None]), A)


def test_another_shape_is_refused_with_both(client: pappus.Client) -> None:
    matmul = client.add_function("matmul_tiled", KERNELS / "configs/matmul_tiled.json", replace=True)
    a, b = np.arange(6).reshape(2, 3), np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(matmul(a, b), a @ b)
    with pytest.raises(pappus.InvalidArgument, match=r"dimension 'k' is 3 here and 2 before it"):
        matmul(a.T, b)
    with pytest.raises(pappus.InvalidArgument, match=r"i64\[6\] came, i64\[m,k\] is expected"):
        matmul(a.reshape(-1), b)


class Exporter:
    """What another library's array is, as far as DLPack goes."""

    def __init__(self, values: np.ndarray[Any, Any], kind: int = 1) -> None:
        self._values, self._kind = values, kind

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._kind, 0

    def __dlpack__(self, **more: Any) -> Any:
        return self._values.__dlpack__(**more)


@pytest.mark.parametrize(
    "value",
    [
        A.copy(),
        A.tobytes(),
        bytearray(A.tobytes()),
        memoryview(A),
        array.array("f", A),
        A.tolist(),
        [0, 1, 2, 3, 4, 5],
        np.repeat(A, 2)[::2],
        A.astype(">f4"),
        np.broadcast_to(A, (1, 6)),
        Exporter(A.copy()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_holds_an_array_is_an_input(vec_add: pappus.Function, value: Any) -> None:
    np.testing.assert_array_equal(vec_add(value, A), 2 * A)


def test_what_lies_on_a_device_is_refused(vec_add: pappus.Function) -> None:
    with pytest.raises(pappus.InvalidArgument, match="copy it to the host"):
        vec_add(Exporter(A.copy(), kind=2), A)


@pytest.mark.parametrize("value", [[1.5], 300, -1, ["x"], [[1], [1, 2]]])
def test_numbers_that_do_not_fit_are_refused(echo: Echo, value: Any) -> None:
    with pytest.raises(pappus.InvalidArgument):
        echo(("X", "u8"))(value)


@pytest.mark.parametrize("dtype", ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "f32", "f64", "bool"])
def test_every_element_type_comes_back_as_it_went(echo: Echo, dtype: str) -> None:
    function = echo(("X", dtype))
    kind = function.inputs[0].dtype
    assert kind is not None
    values = np.array([1, 0, 1]).astype(kind)
    result = function(values)
    assert result.dtype == values.dtype
    np.testing.assert_array_equal(result, values)


def test_bf16_is_that_of_ml_dtypes(echo: Echo) -> None:
    values = np.array([1.5, -2, 3e38], ml_dtypes.bfloat16)
    result = echo(("X", "bf16"))(values)
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result, values)


def test_several_outputs_come_by_name(echo: Echo) -> None:
    result = echo(("X", "f32"), ("Y", None))(A, b"abc")
    assert list(result) == ["Xo", "Yo"]
    np.testing.assert_array_equal(result["Xo"], A)
    assert result["Yo"].tobytes() == b"abc"


def test_what_has_no_type_is_bytes_until_the_caller_gives_one(echo: Echo) -> None:
    function = echo(("X", None))
    assert function(A).dtype == np.uint8
    typed = function.options(dtypes={"X": "f32", "Xo": np.float32})
    np.testing.assert_array_equal(typed(A), A)
    with pytest.raises(pappus.InvalidArgument, match=r"i64\[6\] came, f32 is expected"):
        typed(A.astype(int))
    with pytest.raises(pappus.InvalidArgument, match="no whole elements"):
        function.options(dtypes={"Xo": "f64"})(A[:1])
    with pytest.raises(pappus.InvalidArgument, match="no input or output 'Z'"):
        function.options(dtypes={"Z": "f32"})


def test_declared_shapes_come_back(echo: Echo) -> None:
    shape = [{"Absolute": 2}, {"CeilDiv": [{"Sizeof": "X"}, {"Absolute": 8}]}]
    assert echo(("X", "f32"), shape=shape)(A.reshape(2, 3)).shape == (2, 3)
    assert echo(("X", "f32"), shape=shape)(A.tobytes()).shape == (2, 3)


def test_no_elements_are_an_array_too(echo: Echo) -> None:
    result = echo(("X", None), ("Y", "f32"))(np.empty(0, np.float32), A)
    assert result["Xo"].size == 0
    np.testing.assert_array_equal(result["Yo"], A)


def test_a_function_without_inputs_and_outputs_is_called(client: pappus.Client) -> None:
    assert client.add_function("hello", KERNELS / "configs/hello.json", replace=True)() == {}


def test_outputs_go_where_they_are_wanted(vec_add: pappus.Function) -> None:
    out = np.zeros(6, np.float32)
    assert vec_add.options(out=out)(A, A) is out
    np.testing.assert_array_equal(out, 2 * A)
    strided = np.zeros(12, np.float32)[::2]
    assert vec_add.options(out={"C": strided})(A, A) is strided
    np.testing.assert_array_equal(strided, 2 * A)
    for wrong in (np.zeros(5, np.float32), np.zeros(6, np.int32)):
        with pytest.raises(pappus.InvalidArgument):
            vec_add.options(out=wrong)(A, A)
    frozen = np.zeros(6, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(pappus.InvalidArgument, match="written"):
        vec_add.options(out=frozen)
    with pytest.raises(pappus.InvalidArgument, match="no output 'D'"):
        vec_add.options(out={"D": out})


def test_results_that_are_not_copied_keep_their_memory(vec_add: pappus.Function) -> None:
    lending = vec_add.options(copy=False)
    kept = [lending(A, np.full(6, n, np.float32)) for n in range(20)]
    for n, result in enumerate(kept):
        np.testing.assert_array_equal(result, A + n)
    addresses = {result.__array_interface__["data"][0] for result in kept}
    assert len(addresses) == 20
    part = kept[3][2:]
    del kept, result
    gc.collect()
    # Of those that nobody has any more, the memory is used again; a part keeps the whole.
    later = [lending(A, A).__array_interface__["data"][0] for _ in range(40)]
    assert set(later) <= addresses
    np.testing.assert_array_equal(part, A[2:] + 3)


def test_results_that_are_not_copied_are_inputs_without_a_copy(client: pappus.Client, vec_add: pappus.Function) -> None:
    lending = vec_add.options(copy=False)
    result = lending(A, A)
    place = client._pool.find(result, callers_only=False)
    assert place is not None
    for _ in range(5):
        result = lending(result, A)
    np.testing.assert_array_equal(result, 7 * A)


def test_arrays_of_an_arena_are_used_where_they_lie(client: pappus.Client, vec_add: pappus.Function) -> None:
    arena = client.arena(4096)
    a, out = arena.array(A), arena.empty(6)
    adding = vec_add.options(out=out)
    assert adding(a, a) is out
    np.testing.assert_array_equal(out, 2 * A)
    # Mixed with others, and a second time over the same memory.
    a += 1
    adding(A, a)
    np.testing.assert_array_equal(out, 2 * A + 1)
    with pytest.raises(pappus.InvalidArgument, match=r"f32\[5\] came, f32\[6\] is expected"):
        vec_add.options(out=arena.empty(5))(a, a)
    with pytest.raises(pappus.InvalidArgument, match="overlap"):
        vec_add.options(out=a)(a, A)
    client.close_arena(arena)
    np.testing.assert_array_equal(adding(a, a), out)


def test_an_arena_has_its_bytes_and_no_more(client: pappus.Client) -> None:
    arena = client.arena(4096)
    assert len(arena) == 4096
    arena.empty(1000, "f32")
    with pytest.raises(pappus.InvalidArgument, match="no room for 400 bytes in an arena of 4096 of which 4032"):
        arena.empty(100, np.float32)
    arena.reset()
    assert arena.empty((2, 3), "i64").shape == (2, 3)
    with pytest.raises(pappus.InvalidArgument):
        client.arena(0)
    with pytest.raises(pappus.InvalidArgument):
        arena.empty(1, object)


def test_calls_in_flight_have_their_own_results(vec_add: pappus.Function) -> None:
    calls = [vec_add.submit(A, np.full(6, n, np.float32)) for n in range(300)]
    for n in reversed(range(300)):
        np.testing.assert_array_equal(calls[n].result(), A + n)
    assert all(call.done() for call in calls)
    assert calls[0].device() == "cpu"
    assert calls[0].timings().total_ns > 0


def test_threads_share_a_client(vec_add: pappus.Function) -> None:
    wrong: list[Any] = []

    def work(mine: int) -> None:
        try:
            for n in range(50):
                pair = [vec_add.submit(A, np.full(6, mine * 100 + n, np.float32)) for _ in range(2)]
                direct = vec_add(A, np.full(6, -mine, np.float32))
                np.testing.assert_array_equal(direct, A - mine)
                for call in pair:
                    np.testing.assert_array_equal(call.result(30), A + mine * 100 + n)
        except BaseException as why:
            wrong.append(why)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_call_has_one_result_for_all_threads(vec_add: pappus.Function) -> None:
    call = vec_add.submit(A, A)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(call.result())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, 2 * A)


def test_more_is_sent_than_the_sockets_hold(client: pappus.Client, echo: Echo) -> None:
    """Nobody reads while all of this is sent: neither side may wait for the other."""
    function = echo(*[(f"input-with-a-long-name-{n:03}", None) for n in range(100)])
    calls = [function.submit(*[b"x"] * 100) for _ in range(400)]
    for call in calls:
        assert all(out.tobytes() == b"x" for out in call.result().values())


def until_running(supervisor: Supervisor) -> None:
    with supervisor.admin() as admin:
        while not sum(device.running for device in admin.status().devices):
            pass


def test_a_deadline_ends_a_call(endless: Any) -> None:
    function, inputs = endless()
    with pytest.raises(pappus.DeadlineExceeded) as caught:
        function.options(deadline=0.02)(**inputs)
    assert caught.value.code is pappus.Code.DEADLINE_EXCEEDED
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(pappus.InvalidArgument, match="expected more than 0"):
            function.options(deadline=wrong)


def test_a_call_is_given_up(start: Callable[..., Supervisor]) -> None:
    supervisor = start(device="cpu:workers=1,memory=16MiB")
    with supervisor.connect() as client:
        function = client.add_function("jacobi", KERNELS / "configs/jacobi.json")
        one = np.ones(64, np.float32)
        inputs = {"steps": 900_000, "A": np.eye(64, dtype=np.float32), "b": one, "x": one}
        call = function.submit(**inputs)
        until_running(supervisor)
        assert not call.done()
        with pytest.raises(TimeoutError):
            call.result(timeout=0)
        call.cancel()
        with pytest.raises(pappus.Cancelled):
            call.result()
        call.cancel()
        # The worker may go on for a while: what it writes to is used for no other call.
        (old,) = client._pool._arenas
        del call
        fast = inputs | {"steps": 2}
        np.testing.assert_array_equal(function(**fast), one)
        assert old.retired
        assert old not in client._pool._arenas


def test_an_interruption_does_not_cost_the_connection(start: Callable[..., Supervisor]) -> None:
    supervisor = start(device="cpu:workers=1,memory=16MiB")
    with supervisor.connect() as client:
        function = client.add_function("jacobi", KERNELS / "configs/jacobi.json")
        one = np.ones(64, np.float32)
        inputs = {"steps": 900_000, "A": np.eye(64, dtype=np.float32), "b": one, "x": one}

        def interrupt() -> None:
            until_running(supervisor)
            # What was sent is sent, and the answer is far away: nothing is between a byte and its meaning.
            while client._connection._reader is None:
                pass
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        # A shell's background jobs are started with interruptions ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                function(**inputs)
            thread.join()
        finally:
            signal.signal(signal.SIGINT, before)
        assert client.status().devices[0].running == 1
        # The call goes on, and with it what it uses.
        (waiting,) = client._connection._requests.waiting.values()
        assert waiting.memory is not None


def test_a_forked_process_connects_for_itself(client: pappus.Client) -> None:
    child = os.fork()
    if child == 0:
        try:
            client.status()
        except pappus.InvalidArgument:
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not client.status().draining


def test_a_kernel_that_failed_is_named_once() -> None:
    failed = pappus.KernelFault("kernel `k` at k.c:7: requires n > 0", place="kernel k")
    assert str(failed) == "kernel `k` at k.c:7: requires n > 0 [KERNEL_FAULT]"
    assert str(pappus.KernelFault("it trapped", place="kernel k")) == "at kernel k: it trapped [KERNEL_FAULT]"
