"""Sessions: state that stays from one call to the next."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
import pappus.aio
from fixture import KERNELS, VEC_ADD, Supervisor
from pappus import _requests
from pappus._pool import Pool
from pappus._proto import pappus_pb2 as v1


def add(client: pappus.Client, folder: Path, name: str = "last") -> str:
    """A function of `X`, whose output is what the call before brought."""
    blueprint: dict[str, Any] = {
        "inputs": ["X"],
        "state": {"last": 16},
        "buffers": {"before": 16},
        "outputs": ["before"],
        "types": {name: {"dtype": "f32", "shape": [4]} for name in ("X", "last", "before")},
        "control_flow": [{"Copy": {"from": "last", "to": "before"}}, {"Copy": {"from": "X", "to": "last"}}],
    }
    config = {"module_path": str(KERNELS / "built/module.wasm"), "kernels": [], "blueprint": blueprint}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return client.add_function(name, path, replace=True).name


def of(number: float) -> np.ndarray:
    return np.full(4, number, np.float32)


def test_state_stays_from_call_to_call(client: pappus.Client, tmp_path: Path) -> None:
    name = add(client, tmp_path)
    with client.session(name) as one, client.session(name) as other:
        assert [one(of(n))[0] for n in (1, 2, 3)] == [0, 1, 2]
        assert other(X=of(9))[0] == 0
        # An option makes another handle of the same session.
        assert one.options(deadline="10s")(of(4))[0] == 3
        calls = [one.submit(of(n)) for n in (5, 6, 7)]
        assert [call.result()[0] for call in calls] == [4, 5, 6]
        # Another function of the same state.
        add(client, tmp_path, "again")
        assert one.function("again")(of(8))[0] == 7
        assert one(of(9))[0] == 8
        assert str(one) == "<Session last: X: f32[4] → before: f32[4]>"
    with pytest.raises(pappus.SessionLost, match="another one, whose state is zero"):
        one(of(1))
    one.close()
    with pytest.raises(pappus.InvalidArgument, match="open a session"):
        client.function(name)(of(1))
    stateless = client.add_function("vec_add", VEC_ADD, replace=True)
    with pytest.raises(pappus.InvalidArgument, match="no state"):
        client.session(stateless.name)


def test_a_session_ends_with_its_connection(start: Callable[..., Supervisor], tmp_path: Path) -> None:
    supervisor = start()
    with supervisor.connect(patience=20) as client:
        session = client.session(add(client, tmp_path))
        assert session(of(1))[0] == 0
        supervisor.kill()
        supervisor.start()
        with pytest.raises(pappus.SessionLost):
            session(of(2))
        session.close()
        with client.session("last") as again:
            assert again(of(3))[0] == 0


@pytest.mark.parametrize("answered_first", [True, False])
def test_a_session_whose_opening_was_given_up_is_closed_by_the_next(answered_first: bool) -> None:
    pool = Pool()
    opening = _requests.open_session(pool, "last")
    sent = next(opening)
    assert sent.request.open_session.function == "last"
    assert sent.arrived is not None
    answer = v1.Response(session=v1.SessionOpened(session=7))
    if answered_first:
        sent.arrived(answer)
    opening.close()
    sent.arrived(answer)
    closing = next(_requests.open_session(pool, "last")).request
    assert closing.close_session.session == 7
    assert next(_requests.open_session(pool, "last")).request.open_session.function == "last"


def test_asyncio(supervisor: Supervisor, client: pappus.Client, tmp_path: Path) -> None:
    name = add(client, tmp_path)

    async def run() -> list[float]:
        async with await pappus.aio.connect(supervisor.path) as connected:
            async with await connected.session(name) as session:
                first = [float((await session(of(n)))[0]) for n in (1, 2)]
                rest = await asyncio.gather(*[session(of(n)) for n in (3, 4, 5)])
            with pytest.raises(pappus.SessionLost):
                await session(of(6))
            return first + [float(result[0]) for result in rest]

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]
