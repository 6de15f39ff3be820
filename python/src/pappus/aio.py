"""The client for asyncio: what :mod:`pappus.client` has, to be awaited.

>>> import asyncio, pappus.aio
>>> async def main():
...     async with await pappus.aio.connect(socket) as client:
...         vec_add = await client.function("vec_add")
...         calls = [vec_add(np.float32([n]), np.float32([1])) for n in range(3)]
...         return [float(result[0]) for result in await asyncio.gather(*calls)]
>>> asyncio.run(main())
[1.0, 2.0, 3.0]

A call whose task is cancelled is cancelled at the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pappus import _aio_connection, _opening, _requests
from pappus._aio_connection import AsyncConnection
from pappus._call import Bound, Handle, OfThisProcess, Options, Prepared, R
from pappus._opening import seconds_of
from pappus._pool import Pool
from pappus._proto import pappus_pb2 as v1
from pappus._requests import Operation
from pappus._signature import Signature
from pappus.arena import Arena
from pappus.client import ASK_AGAIN, default_path
from pappus.errors import ConnectionLost, Error, InvalidArgument, Unavailable

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


async def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    token: str | bytes | None = None,
    patience: float | None = None,
) -> AsyncClient:
    """As :func:`pappus.connect`; the client belongs to the event loop that runs now."""
    loop = asyncio.get_running_loop()
    name = default_path() if path is None else os.fspath(path)

    async def begin() -> AsyncConnection:
        peer = await _aio_connection.run(_opening.opening(name, patience), loop)
        connection = AsyncConnection(peer, loop, seconds_of(patience))
        if token is not None:
            try:
                await _run(_requests.act_for(token), connection)
            except BaseException:
                connection.close()
                raise
        return connection

    return AsyncClient(await begin(), _Reopening(begin, patience) if patience else None)


async def _run(operation: Operation[T], connection: AsyncConnection) -> T:
    """Runs an operation on a connection: sends what it yields, and gives it the answers."""
    connection.check()
    try:
        outgoing = next(operation)
        while True:
            try:
                answer = await connection.ask(*outgoing, slow=outgoing.is_slow())
            except Error as why:
                outgoing = operation.throw(why)
            else:
                outgoing = operation.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        operation.close()


class _Reopening(NamedTuple):
    """How a client connects again, and for how many seconds that is worth trying."""

    begin: Callable[[], Awaitable[AsyncConnection]]
    patience: float


class _Link(NamedTuple):
    """A connection, and the arenas that the supervisor knows by it."""

    connection: AsyncConnection
    pool: Pool


class AsyncFunction(Handle[R]):
    """A function of the supervisor; what it is called with is as for :class:`pappus.Function`."""

    __slots__ = ()
    _client: AsyncClient

    async def __call__(self, /, *arrays: object, **named: object) -> R:
        """Calls it and waits for its end."""
        try:
            return await self._renewing(arrays, named)
        except Unavailable as why:
            return await self._client._again(why, lambda: self._renewing(arrays, named))

    async def _renewing(self, arrays: Sequence[object], named: Mapping[str, object]) -> R:
        """Calls it. Of a function that was replaced meanwhile, what it takes now decides."""
        try:
            return await self._call(arrays, named)
        except InvalidArgument:
            if not await self._renew():
                raise
        return await self._call(arrays, named)

    async def _call(self, arrays: Sequence[object], named: Mapping[str, object]) -> R:
        link = await self._client._linked()
        bound = self._bound = self._bound.within(link.pool)
        prepared = await self._client._prepare(link, bound, arrays, named)
        answered = await link.connection.call(prepared.request, prepared, bound.options.deadline_ns())
        result: R = prepared.finish(answered)
        return result

    async def _renew(self) -> bool:
        """True if another function has the name by now, which is the one that is called from here on."""
        try:
            bound = self._bound.renewed(await self._client._run(_requests.show_function(self.name)))
        except Error:
            # What is wrong with the call says more.
            return False
        self._bound = bound or self._bound
        return bound is not None


class AsyncSession(AsyncFunction[R]):
    """As :class:`pappus.Session`. Calls run in the order in which they were begun."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def function(self, name: str) -> AsyncSession[Any]:
        """Another function that has the same state, called in this session."""
        number = self._bound.options.session
        return AsyncSession(self._client, (await self._client.function(name))._bound.but_with(None, {"session": number}))

    async def close(self) -> None:
        """Ends the session, and frees its state. Calls in flight go on."""
        connection = self._client._connection
        with contextlib.suppress(Unavailable):
            await _run(_requests.close_session(self._bound.options.session), connection)


class AsyncClient(OfThisProcess):
    """A connection to a supervisor, for one event loop. Its methods are those of :class:`pappus.Client`."""

    def __init__(self, connection: AsyncConnection, reopening: _Reopening | None = None) -> None:
        self._link = _Link(connection, Pool())
        self._reopening = reopening
        self._closed = False
        self._linking = asyncio.Lock()
        self._growing = asyncio.Lock()

    @property
    def _connection(self) -> AsyncConnection:
        return self._link.connection

    @property
    def _pool(self) -> Pool:
        return self._link.pool

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection. Arenas end with it, and calls in flight are cancelled."""
        self._closed = True
        self._connection.close()

    @property
    def closed(self) -> bool:
        """True if the connection has ended, here or at the supervisor, or belongs to another process."""
        return self._connection.broken is not None

    def __repr__(self) -> str:
        return f"<AsyncClient, {'closed' if self.closed else 'connected'}>"

    async def function(self, name: str) -> AsyncFunction[Any]:
        """A function as it is registered now, ``NAME`` or another tenant's ``OWNER/NAME``."""
        signature = Signature(await self._run(_requests.show_function(name)))
        return AsyncFunction(self, Bound(name, signature, self._pool, Options()))

    async def session(self, name: str) -> AsyncSession[Any]:
        """Begins a session of a function that has state, whose calls keep it."""
        bound = (await self.function(name))._bound
        number = await self._run(_requests.open_session(self._pool, name))
        return AsyncSession(self, bound.but_with(None, {"session": number}))

    async def add_function(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        weights: Mapping[str, object] | None = None,
        replace: bool = False,
    ) -> AsyncFunction[Any]:
        """As :meth:`pappus.Client.add_function`. Files are read in the event loop's thread."""
        info = await self._run(_requests.add_function(name, path, weights or {}, replace))
        return await self.function(info.name)

    async def remove_function(self, name: str) -> None:
        """Removes a function with its versions; by ``NAME@NUMBER``, a kept one. Calls that were accepted are answered."""
        await self._run(_requests.remove_function(name))

    async def use_version(self, version: str) -> v1.FunctionInfo:
        """Makes a version of a function, ``NAME@NUMBER`` or ``NAME:ALIAS``, the current one, without an upload.

        Calls that were accepted finish with what they began with.
        """
        return await self._run(_requests.use_version(version))

    async def set_alias(self, function: str, alias: str, number: int) -> None:
        """Names a version: ``FUNCTION:ALIAS`` is called from then on as ``FUNCTION@NUMBER``, which is kept."""
        await self._run(_requests.set_alias(function, alias, number))

    async def remove_alias(self, function: str, alias: str) -> None:
        """``FUNCTION:ALIAS`` names nothing any more."""
        await self._run(_requests.set_alias(function, alias, 0))

    async def functions(self, *, granted: bool = False) -> list[v1.FunctionInfo]:
        """This tenant's functions, and then those that others granted; with ``granted`` only these."""
        return await self._run(_requests.list_functions(granted))

    async def show_function(self, name: str) -> v1.FunctionInfo:
        """All that is known of a function."""
        return await self._run(_requests.show_function(name))

    async def add_module(self, name: str, files: Sequence[str | os.PathLike[str]]) -> v1.ModuleInfo:
        """Registers files, each a variant, as a module that functions can name."""
        return await self._run(_requests.add_module(name, list(files)))

    async def remove_module(self, name: str) -> None:
        """Removes a registered module."""
        await self._run(_requests.remove_module(name))

    async def modules(self) -> list[v1.ModuleInfo]:
        """This tenant's registered modules."""
        return await self._run(_requests.list_modules())

    async def grant(self, function: str, tenant: str | int) -> None:
        """Lets another tenant call a function; it names it ``OWNER/NAME``."""
        await self._run(_requests.grant(function, tenant))

    async def revoke(self, function: str, tenant: str | int) -> None:
        """Lets another tenant call a function no longer."""
        await self._run(_requests.revoke(function, tenant))

    async def grants(self, function: str) -> list[str]:
        """Who may call a function besides its owner."""
        return await self._run(_requests.grants(function))

    async def decline(self, owner: str | int, *, undo: bool = False) -> None:
        """Leaves what a tenant grants to this one, now or later, out of :meth:`functions`; ``undo`` lists it again.

        Calls of ``OWNER/NAME`` go on.
        """
        await self._run(_requests.decline(owner, undo))

    async def arena(self, size: int) -> Arena:
        """Shared memory of ``size`` bytes for inputs and outputs that are not copied."""
        return Arena(await self._run(_requests.open_arena(self._pool, size)))

    async def close_arena(self, arena: Arena) -> None:
        """Stops sharing an arena. Arrays over it stay valid memory."""
        await self._run(_requests.close_arena(self._pool, arena._mapped))

    async def status(self) -> v1.Status:
        """What the supervisor and its devices are doing."""
        return await self._run(_requests.status())

    async def quota(self) -> v1.TenantInfo:
        """What this tenant has, and what it may have."""
        return await self._run(_requests.quota())

    async def tenants(self) -> list[v1.TenantInfo]:
        """All tenants with their usage and quotas. Admin socket only."""
        return await self._run(_requests.list_tenants())

    async def settings(self, change: Mapping[str, str] | None = None) -> dict[str, str]:
        """Changes settings, then reads all of them. Admin socket only."""
        return await self._run(_requests.settings(change or {}))

    async def drain(self) -> None:
        """Lets running work finish, accepts no more, and ends the supervisor. Admin socket only."""
        await self._run(_requests.drain())

    async def _prepare(self, link: _Link, bound: Bound, arrays: Sequence[object], named: Mapping[str, object]) -> Prepared:
        # Before anything is written into shared memory, which another process may be using.
        link.connection.check()
        while isinstance(prepared := bound.prepare(arrays, named), int):
            async with self._growing:
                await _run(_requests.grow(link.pool, prepared), link.connection)
        return prepared

    async def _run(self, operation: Operation[T]) -> T:
        """Runs an operation."""
        try:
            connection = (await self._linked()).connection
        except BaseException:
            operation.close()
            raise
        return await _run(operation, connection)

    async def _linked(self) -> _Link:
        """The connection; another one where it broke and this client outlives that."""
        link = self._link
        if self._reopening is None or self._closed or not link.connection.is_lost():
            return link
        return await self._relink(link)

    async def _relink(self, old: _Link) -> _Link:
        """Connects again, unless another task has. Calls in flight on the old connection end there."""
        assert self._reopening is not None
        async with self._linking:
            if self._link is old:
                self._link = _Link(await self._reopening.begin(), Pool())
                if old.connection.is_lost():
                    old.connection.close()
            link = self._link
        if self._closed:
            # By another task meanwhile.
            link.connection.close()
        return link

    async def _again(self, why: Unavailable, work: Callable[[], Awaitable[T]]) -> T:
        """Does again what failed like this, as long as this client outlives it and has patience."""
        if self._reopening is None:
            raise why
        loop = asyncio.get_running_loop()
        end = loop.time() + self._reopening.patience
        while True:
            # A supervisor that drains says when to come back. Who is silent, or nobody, has had all the time that there is.
            passes = isinstance(why, ConnectionLost) or why.retry_after is not None
            if self._closed or not passes or loop.time() >= end:
                raise why
            link = self._link
            if link.connection.broken is None:
                # It drains: its connections end with it.
                await asyncio.sleep(min(ASK_AGAIN, max(0.0, end - loop.time())))
                await self._relink(link)
            try:
                return await work()
            except Unavailable as again:
                why = again
