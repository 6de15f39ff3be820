"""The blocking client: functions as callables, calls in flight, and everything else that a supervisor is asked for."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from pappus import _opening, _requests
from pappus._call import REPLACED, Bound, Handle, OfThisProcess, Options, Prepared, R
from pappus._connection import Connection, Sent
from pappus._opening import seconds_of
from pappus._pool import Pool
from pappus._proto import pappus_pb2 as v1
from pappus._requests import Operation
from pappus._signature import Signature
from pappus.arena import Arena
from pappus.errors import ConnectionLost, Error, InvalidArgument, Unavailable

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

DEFAULT_SOCKET = "/run/pappus/pappus.sock"
# Seconds before a supervisor that takes no calls is asked again.
ASK_AGAIN = 0.05


def default_path() -> str:
    """The socket of the environment variable ``PAPPUS_SOCKET``, or the usual one."""
    return os.environ.get("PAPPUS_SOCKET") or DEFAULT_SOCKET


def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    token: str | bytes | None = None,
    patience: float | None = None,
) -> Client:
    """Connects to a supervisor.

    ``path`` is its socket, by default that of ``PAPPUS_SOCKET`` or ``/run/pappus/pappus.sock``. A gateway says by ``token``
    which tenant the connection is for. ``patience`` says how many seconds a supervisor may take to answer: to the connection,
    which is tried again meanwhile if nobody listens, and to each later request that it does at once. Without it, these are
    30 seconds, and nobody who listens is an error at once. With it, the client outlives a restart: it connects again, and a
    call that was not accepted, or whose connection broke, is made again, for so many seconds from its first failure on.
    """
    name = default_path() if path is None else os.fspath(path)

    def begin() -> Connection:
        connection = Connection(_opening.run(_opening.opening(name, patience)), seconds_of(patience))
        if token is not None:
            try:
                _run(_requests.act_for(token), connection)
            except BaseException:
                connection.close()
                raise
        return connection

    return Client(begin(), _Reopening(begin, patience) if patience else None)


def _run(operation: Operation[T], connection: Connection) -> T:
    """Runs an operation on a connection: sends what it yields, and gives it the answers."""
    connection.check()
    try:
        outgoing = next(operation)
        while True:
            try:
                answer = connection.ask(*outgoing, slow=outgoing.is_slow())
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

    begin: Callable[[], Connection]
    patience: float


class _Link(NamedTuple):
    """A connection, and the arenas that the supervisor knows by it."""

    connection: Connection
    pool: Pool


class Call(OfThisProcess, Generic[R]):
    """A call in flight. It goes on whether or not anybody waits for it."""

    __slots__ = ("_connection", "_function", "_prepared", "_result", "_waiting")

    def __init__(self, function: Function[R], prepared: Prepared, waiting: Sent, connection: Connection) -> None:
        self._connection = connection
        self._function = function
        self._prepared: Prepared | None = prepared
        self._waiting = waiting
        self._result: Any = None

    def __repr__(self) -> str:
        return f"<Call of {self._function.name}: {'done' if self.done() else 'in flight'}>"

    def done(self) -> bool:
        """Whether its answer is there."""
        return self._connection.poll(self._waiting)

    def result(self, timeout: float | None = None) -> R:
        """Waits for its end and returns its outputs: an array, or a dictionary of arrays where there are several.

        Raises an :class:`pappus.Error` if it failed, :class:`TimeoutError` if it takes longer than ``timeout`` seconds; it
        goes on then.
        """
        try:
            answer = self._connection.wait(self._waiting, timeout)
        except InvalidArgument as why:
            if why.place == REPLACED and self._function._renew():
                # What it was given may have changed since, so it is for the caller to make the call again.
                why.message = f"{self._function.name} was replaced since this call was submitted: submit it again"
                why.retryable = True
            raise
        # Two threads that ask at once make two arrays of one answer; the one that is kept is right, too.
        prepared = self._prepared
        if prepared is not None:
            self._result = prepared.finish(answer)
            self._prepared = None
        result: R = self._result
        return result

    def cancel(self) -> None:
        """Gives it up: :meth:`result` raises :class:`pappus.Cancelled` at once, unless it has ended already."""
        if not self._waiting.done():
            _run(_requests.ask("done", v1.Request(cancel=v1.Cancel(request=self._waiting.id))), self._connection)

    def timings(self) -> v1.Timings:
        """Where its time went, as the supervisor saw it. Waits for its end."""
        return self._connection.wait(self._waiting).invoked.timings

    def device(self) -> str:
        """Which device ran it. Waits for its end."""
        return self._connection.wait(self._waiting).invoked.device


class Function(Handle[R]):
    """A function of the supervisor, called like one of Python.

    Inputs are given by name, or in their order. An output comes back as an array of the type and shape that the function
    declares; several come in a dictionary.

    >>> vec_add = client.function("vec_add")
    >>> vec_add
    <Function vec_add: A: f32[…], B: f32[…] → C: f32[…]>
    >>> vec_add(A=np.float32([1, 2, 3]), B=np.float32([10, 20, 30]))
    array([11., 22., 33.], dtype=float32)
    """

    __slots__ = ()
    _client: Client

    def __call__(self, /, *arrays: object, **named: object) -> R:
        """Calls it and waits for its end."""
        try:
            return self._renewing(self._call, arrays, named)
        except Unavailable as why:
            return self._client._again(why, lambda: self._renewing(self._call, arrays, named))

    def _renewing(
        self,
        work: Callable[[Sequence[object], Mapping[str, object]], T],
        arrays: Sequence[object],
        named: Mapping[str, object],
    ) -> T:
        """Does something with inputs. Of a function that was replaced meanwhile, what it takes now decides."""
        try:
            return work(arrays, named)
        except InvalidArgument:
            if not self._renew():
                raise
        return work(arrays, named)

    def _call(self, arrays: Sequence[object], named: Mapping[str, object]) -> R:
        sent, prepared, connection = self._send(arrays, named)
        result: R = prepared.finish(connection.wait(sent))
        return result

    def _send(self, arrays: Sequence[object], named: Mapping[str, object]) -> tuple[Sent, Prepared, Connection]:
        link = self._client._linked()
        bound = self._bound = self._bound.within(link.pool)
        prepared = self._client._prepare(link, bound, arrays, named)
        return link.connection.call(prepared.request, prepared, bound.options.deadline_ns()), prepared, link.connection

    def _renew(self) -> bool:
        """True if another function has the name by now, which is the one that is called from here on."""
        try:
            bound = self._bound.renewed(self._client._run(_requests.show_function(self.name)))
        except Error:
            # What is wrong with the call says more.
            return False
        self._bound = bound or self._bound
        return bound is not None

    def submit(self, /, *arrays: object, **named: object) -> Call[R]:
        """Starts a call and returns at once. Inputs were copied by then, unless they lie in an arena.

        >>> calls = [client.function("vec_add").submit(np.float32([n]), np.float32([1])) for n in range(3)]
        >>> [float(call.result()[0]) for call in calls]
        [1.0, 2.0, 3.0]
        """
        try:
            sent, prepared, connection = self._renewing(self._send, arrays, named)
        except Unavailable as why:
            # It broke before the call was sent.
            sent, prepared, connection = self._client._again(why, lambda: self._renewing(self._send, arrays, named))
        return Call(self, prepared, sent, connection)


class Session(Function[R]):
    """A function whose state stays from one call to the next, and is zero when the session begins.

    Calls run one after the other, in the order in which they were made. One that fails has changed nothing. The session ends
    with ``close``, with the ``with`` block, with the connection, or when the supervisor saw no call of it for too long: calls
    raise :class:`pappus.SessionLost` then.

    >>> with client.session("gpt") as gpt:                     # doctest: +SKIP
    ...     tokens = [gpt(token=np.int32([t])) for t in prompt]
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def function(self, name: str) -> Session[Any]:
        """Another function that has the same state, called in this session: prefill and decode of one model, say."""
        number = self._bound.options.session
        return Session(self._client, self._client.function(name)._bound.but_with(None, {"session": number}))

    def close(self) -> None:
        """Ends the session, and frees its state. Calls that were submitted go on."""
        connection = self._client._connection
        with contextlib.suppress(Unavailable):
            _run(_requests.close_session(self._bound.options.session), connection)


class Client(OfThisProcess):
    """A connection to a supervisor. Any number of threads may use it at once.

    It belongs to the process that made it. A child of ``fork`` is refused; where it closes it, its parent's goes on.

    Its methods raise :class:`pappus.Error`. What they return besides arrays are messages of ``proto/pappus.proto``, which
    has the meaning of every field.
    """

    def __init__(self, connection: Connection, reopening: _Reopening | None = None) -> None:
        self._link = _Link(connection, Pool())
        self._reopening = reopening
        self._closed = False
        self._linking = threading.Lock()
        self._growing = threading.Lock()

    @property
    def _connection(self) -> Connection:
        return self._link.connection

    @property
    def _pool(self) -> Pool:
        return self._link.pool

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection. Arenas end with it, and calls in flight are cancelled."""
        self._closed = True
        self._connection.close()

    @property
    def closed(self) -> bool:
        """True if the connection has ended, here or at the supervisor, or belongs to another process.

        A client that outlives a restart connects again when it is used next, unless it was closed here.
        """
        return self._connection.broken is not None

    def __repr__(self) -> str:
        return f"<Client, {'closed' if self.closed else 'connected'}>"

    def function(self, name: str) -> Function[Any]:
        """A function as it is registered now, ``NAME`` or another tenant's ``OWNER/NAME``.

        Where another function takes its place, the next call notices and is judged by what that one takes. Who writes
        ``f: pappus.Function[pappus.Array] = client.function(name)`` tells a type checker what calls return.
        """
        signature = Signature(self._run(_requests.show_function(name)))
        return Function(self, Bound(name, signature, self._link.pool, Options()))

    def session(self, name: str) -> Session[Any]:
        """Begins a session of a function that has state, whose calls keep it.

        Of a client that outlives restarts, a session does not: it ends with the connection.
        """
        bound = self.function(name)._bound
        number = self._run(_requests.open_session(self._pool, name))
        return Session(self, bound.but_with(None, {"session": number}))

    def add_function(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        weights: Mapping[str, object] | None = None,
        replace: bool = False,
    ) -> Function[Any]:
        """Registers a function that lies on disk.

        ``path`` is a configuration file, a folder with ``function.json`` or a single ``.json`` file, or a ``.pappus`` file,
        which is such a folder as an archive (``zip -0``), and may be a stranger's. Modules are found beside the files that
        the configuration names, all variants of them. ``weights`` are arrays or files by buffer, which take precedence
        over the configuration's. With ``replace`` it becomes the next version of a function of that name; the one before is
        kept as ``NAME@NUMBER``.
        """
        info = self._run(_requests.add_function(name, path, weights or {}, replace))
        # What an answer to registering leaves out, such as the configuration, is asked for.
        return self.function(info.name)

    def remove_function(self, name: str) -> None:
        """Removes a function with its versions; by ``NAME@NUMBER``, a kept one. Calls that were accepted are answered."""
        self._run(_requests.remove_function(name))

    def use_version(self, version: str) -> v1.FunctionInfo:
        """Makes a version of a function, ``NAME@NUMBER`` or ``NAME:ALIAS``, the current one, without an upload.

        Calls that were accepted finish with what they began with.
        """
        return self._run(_requests.use_version(version))

    def set_alias(self, function: str, alias: str, number: int) -> None:
        """Names a version: ``FUNCTION:ALIAS`` is called from then on as ``FUNCTION@NUMBER``, which is kept."""
        self._run(_requests.set_alias(function, alias, number))

    def remove_alias(self, function: str, alias: str) -> None:
        """``FUNCTION:ALIAS`` names nothing any more."""
        self._run(_requests.set_alias(function, alias, 0))

    def functions(self, *, granted: bool = False) -> list[v1.FunctionInfo]:
        """This tenant's functions, and then those that others granted; with ``granted`` only these.

        >>> [info.name for info in client.functions()]
        ['vec_add']
        """
        return self._run(_requests.list_functions(granted))

    def show_function(self, name: str) -> v1.FunctionInfo:
        """All that is known of a function."""
        return self._run(_requests.show_function(name))

    def add_module(self, name: str, files: Sequence[str | os.PathLike[str]]) -> v1.ModuleInfo:
        """Registers files, each a variant, as a module that functions can name."""
        return self._run(_requests.add_module(name, list(files)))

    def remove_module(self, name: str) -> None:
        """Removes a registered module."""
        self._run(_requests.remove_module(name))

    def modules(self) -> list[v1.ModuleInfo]:
        """This tenant's registered modules."""
        return self._run(_requests.list_modules())

    def grant(self, function: str, tenant: str | int) -> None:
        """Lets another tenant, given by its name or uid, call a function; it names it ``OWNER/NAME``."""
        self._run(_requests.grant(function, tenant))

    def revoke(self, function: str, tenant: str | int) -> None:
        """Lets another tenant call a function no longer."""
        self._run(_requests.revoke(function, tenant))

    def grants(self, function: str) -> list[str]:
        """Who may call a function besides its owner."""
        return self._run(_requests.grants(function))

    def decline(self, owner: str | int, *, undo: bool = False) -> None:
        """Leaves what a tenant grants to this one, now or later, out of :meth:`functions`; ``undo`` lists it again.

        Calls of ``OWNER/NAME`` go on.
        """
        self._run(_requests.decline(owner, undo))

    def arena(self, size: int) -> Arena:
        """Shared memory of ``size`` bytes for inputs and outputs that are not copied."""
        link = self._linked()
        return Arena(_run(_requests.open_arena(link.pool, size), link.connection), link.pool)

    def close_arena(self, arena: Arena) -> None:
        """Stops sharing an arena. Arrays over it stay valid memory."""
        link = self._linked()
        # One of an earlier connection ended with that.
        if arena._pool is link.pool:
            _run(_requests.close_arena(link.pool, arena._mapped), link.connection)

    def status(self) -> v1.Status:
        """What the supervisor and its devices are doing.

        >>> [device.kind for device in client.status().devices]
        ['cpu']
        """
        return self._run(_requests.status())

    def quota(self) -> v1.TenantInfo:
        """What this tenant has, and what it may have."""
        return self._run(_requests.quota())

    def tenants(self) -> list[v1.TenantInfo]:
        """All tenants with their usage and quotas. Admin socket only."""
        return self._run(_requests.list_tenants())

    def settings(self, change: Mapping[str, str] | None = None) -> dict[str, str]:
        """Changes settings, then reads all of them. Admin socket only."""
        return self._run(_requests.settings(change or {}))

    def drain(self) -> None:
        """Lets running work finish, accepts no more, and ends the supervisor. Admin socket only."""
        self._run(_requests.drain())

    def _prepare(self, link: _Link, bound: Bound, arrays: Sequence[object], named: Mapping[str, object]) -> Prepared:
        # Before anything is written into shared memory, which another process may be using.
        link.connection.check()
        while isinstance(prepared := bound.prepare(arrays, named), int):
            with self._growing:
                _run(_requests.grow(link.pool, prepared), link.connection)
        return prepared

    def _run(self, operation: Operation[T]) -> T:
        """Runs an operation."""
        try:
            connection = self._linked().connection
        except BaseException:
            operation.close()
            raise
        return _run(operation, connection)

    def _linked(self) -> _Link:
        """The connection; another one where it broke and this client outlives that."""
        link = self._link
        if self._reopening is None or self._closed or not link.connection.is_lost():
            return link
        return self._relink(link)

    def _relink(self, old: _Link) -> _Link:
        """Connects again, unless another thread has. Calls in flight on the old connection end there."""
        assert self._reopening is not None
        with self._linking:
            if self._link is old:
                self._link = _Link(self._reopening.begin(), Pool())
                if old.connection.is_lost():
                    old.connection.close()
            link = self._link
        if self._closed:
            # By another thread meanwhile.
            link.connection.close()
        return link

    def _again(self, why: Unavailable, work: Callable[[], T]) -> T:
        """Does again what failed like this, as long as this client outlives it and has patience."""
        if self._reopening is None:
            raise why
        end = time.monotonic() + self._reopening.patience
        while True:
            # A supervisor that drains says when to come back. Who is silent, or nobody, has had all the time that there is.
            passes = isinstance(why, ConnectionLost) or why.retry_after is not None
            if self._closed or not passes or time.monotonic() >= end:
                raise why
            link = self._link
            if link.connection.broken is None:
                # It drains: its connections end with it.
                time.sleep(min(ASK_AGAIN, max(0.0, end - time.monotonic())))
                self._relink(link)
            try:
                return work()
            except Unavailable as again:
                why = again
