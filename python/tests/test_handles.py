"""Handles of functions: one that was made before its function was replaced, and what helps where they are typed in."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pappus
import pappus.aio
from fixture import REPOSITORY, Supervisor

Echo = Callable[..., pappus.Function]
ONES = np.ones(4, np.float32)


def test_a_handle_notices_that_its_function_was_replaced(echo: Echo) -> None:
    handle = echo(("X", "f32"))
    np.testing.assert_array_equal(handle(ONES), ONES)
    echo(("X", "i32"))
    # What is refused by the old types is judged by the new ones, and the other way round.
    result = handle(ONES.astype(np.int32))
    assert result.dtype == np.int32
    assert str(handle) == "<Function echo: X: i32 → Xo: i32>"
    echo(("X", "f64"))
    with pytest.raises(pappus.InvalidArgument, match=r"i32\[4\] came, f64 is expected"):
        handle(ONES.astype(np.int32))
    # Numbers are made anew for what is expected now.
    echo(("X", "u8"))
    assert handle([1, 2]).dtype == np.uint8
    echo(("Y", "u8"))
    np.testing.assert_array_equal(handle([1, 2]), [1, 2])
    with pytest.raises(pappus.InvalidArgument, match="no input 'X'"):
        handle(X=[1, 2])


def test_a_submitted_call_says_that_its_function_was_replaced(echo: Echo) -> None:
    handle = echo(("X", "f32"))
    np.testing.assert_array_equal(handle.submit(ONES).result(), ONES)
    echo(("X", "i32"))
    call = handle.submit(ONES)
    with pytest.raises(pappus.InvalidArgument, match="echo was replaced since this call was submitted") as caught:
        call.result()
    assert (caught.value.place, caught.value.retryable) == ("function_version", True)
    with pytest.raises(pappus.InvalidArgument, match=r"f32\[4\] came, i32 is expected"):
        handle.submit(ONES)
    echo(("X", "f32"))
    np.testing.assert_array_equal(handle.submit(ONES).result(), ONES)


def test_a_handle_for_asyncio_notices_it_too(supervisor: Supervisor, echo: Echo) -> None:
    echo(("X", "f32"))

    async def main() -> None:
        async with await pappus.aio.connect(supervisor.path) as client:
            handle = await client.function("echo")
            np.testing.assert_array_equal(await handle(ONES), ONES)
            echo(("X", "i32"))
            assert (await handle(ONES.astype(np.int32))).dtype == np.int32
            with pytest.raises(pappus.InvalidArgument, match=r"f32\[4\] came, i32 is expected"):
                await handle(ONES)

    asyncio.run(main())


def test_the_same_function_again_costs_nothing(client: pappus.Client, echo: Echo) -> None:
    handle = echo(("X", "f32"))
    handle(ONES)
    version = handle._bound.signature.version
    assert version != 0
    bound = handle._bound
    echo(("X", "f32"))
    handle(ONES)
    assert handle._bound is bound
    client.remove_function("echo")
    with pytest.raises(pappus.NotFound):
        handle(ONES)


def test_options_stay_with_a_handle_whose_function_was_replaced(echo: Echo) -> None:
    handle = echo(("X", None)).options(dtypes={"X": "f32", "Xo": "f32"}, copy=False)
    echo(("X", "f32"), ("Y", "f32"))
    result = handle(X=ONES, Y=ONES)
    assert result["Xo"].base is not None
    with pytest.raises(pappus.InvalidArgument, match="no output 'Zo'"):
        handle.options(out={"Zo": ONES})


def test_a_signature_is_that_of_the_function(vec_add: pappus.Function, echo: Echo) -> None:
    assert str(inspect.signature(vec_add)) == "(A: 'f32[…]', B: 'f32[…]') -> 'f32[…]'"
    assert vec_add.__name__ == "vec_add"
    assert list(inspect.signature(pappus.Function).parameters) == ["client", "bound"]
    assert str(inspect.signature(echo(("class", "f32")))) == "(*arrays, **inputs) -> 'f32'"
    several = inspect.signature(echo(("X", "f32"), ("Y", None), shape=[{"Absolute": 4}]))
    assert several.return_annotation == "dict[Xo: f32[4], Yo]"
    assert [str(port) for port in vec_add.inputs] == ["A: f32[…]", "B: f32[…]"]
    assert echo(("X", "f32"), shape=[{"Absolute": 4}]).inputs[0].shape == (4,)


def test_what_is_shown_says_what_it_is(client: pappus.Client, vec_add: pappus.Function) -> None:
    call = vec_add.submit(ONES, ONES)
    call.result()
    assert (str(call), str(client)) == ("<Call of vec_add: done>", "<Client, connected>")
    client.close()
    assert str(client) == "<Client, closed>"


@pytest.mark.parametrize("wanted", ["1s", "500ms", "1m 30s", "2min", 1, 0.5, "1.5 s"])
def test_a_deadline_is_seconds_or_a_time(vec_add: pappus.Function, wanted: Any) -> None:
    ns = {"1s": 1e9, "500ms": 5e8, "1m 30s": 9e10, "2min": 1.2e11, 1: 1e9, 0.5: 5e8, "1.5 s": 1.5e9}[wanted]
    calling = vec_add.options(deadline=wanted)
    np.testing.assert_array_equal(calling(ONES, ONES), 2 * ONES)
    assert calling._bound._deadline_ns == ns


@pytest.mark.parametrize(
    "wanted", ["", "soon", "1", "1 parsec", "0s", "-1s", "1s and more", 0, -1, float("nan"), [1], "x" * 10**6]
)
def test_what_is_no_deadline_is_refused(vec_add: pappus.Function, wanted: Any) -> None:
    with pytest.raises(pappus.InvalidArgument, match="expected more than 0 seconds, or a time such as '1s'") as caught:
        vec_add.options(deadline=wanted)
    assert len(str(caught.value)) < 300


def test_what_belongs_to_a_process_is_not_pickled(client: pappus.Client, vec_add: pappus.Function) -> None:
    arena = client.arena(4096)
    for kept in (client, vec_add, vec_add.submit(ONES, ONES), arena):
        for carry in (pickle.dumps, copy.deepcopy):
            with pytest.raises(pappus.Unsupported, match="is not pickled: connect in each process"):
                carry(kept)


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert pappus.__version__ == version("pappus")


def test_ray_that_is_not_there_is_named() -> None:
    code = "import sys; sys.modules['ray'] = None\nimport pappus.ray"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert ran.returncode == 1
    assert "pappus.ray needs Ray, which is not installed here: pip install" in ran.stderr
