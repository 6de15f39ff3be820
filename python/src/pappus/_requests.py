"""Every request but the calls, as a generator: it yields what is to be sent, is given the answer, and returns a result.

A blocking client and an asynchronous one run the same generators, each in its own way.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pappus import _archive, _files, _memory
from pappus._numbers import shown as described
from pappus._pool import Mapped, Pool
from pappus._proto import pappus_pb2 as v1
from pappus._wire import MAX_ARENA_BYTES, MAX_INLINE_BYTES
from pappus.errors import InvalidArgument, NotFound, ProtocolError, ResourceExhausted, SessionLost

T = TypeVar("T")


# Requests for which a supervisor compiles, reads gigabytes or waits for calls.
_SLOW = frozenset({"put_blob", "add_module", "add_function", "use_version", "drain"})


class Outgoing(NamedTuple):
    """A request with its descriptors, which stay open until it is sent."""

    request: v1.Request
    descriptors: tuple[int, ...] = ()
    # Takes what the answer brings, even if it comes when nobody waits for it any more. It may be called twice.
    arrived: Callable[[v1.Response], None] | None = None

    def is_slow(self) -> bool:
        """True if it may take the supervisor long, however well it is."""
        return self.request.WhichOneof("body") in _SLOW


Operation = Generator[Outgoing, v1.Response, T]


def ask(
    kind: str, request: v1.Request, *descriptors: int, arrived: Callable[[v1.Response], None] | None = None
) -> Operation[Any]:
    """Sends one request, and takes the kind of answer that belongs to it."""
    answer = yield Outgoing(request, descriptors, arrived)
    if answer.WhichOneof("body") != kind:
        raise ProtocolError(f"the supervisor answered with {answer.WhichOneof('body')} where {kind} is expected")
    return getattr(answer, kind)


def act_for(token: str | bytes) -> Operation[None]:
    """Says which tenant all further requests are from."""
    token = token.encode() if isinstance(token, str) else token
    yield from ask("done", v1.Request(act_for=v1.ActFor(token=token.strip())))


def status() -> Operation[v1.Status]:
    """What the supervisor and its devices are doing."""
    found: v1.Status = yield from ask("status", v1.Request(status=v1.Empty()))
    return found


def quota() -> Operation[v1.TenantInfo]:
    """What this tenant has, and what it may have."""
    found: v1.TenantInfo = yield from ask("tenant", v1.Request(quota=v1.Empty()))
    return found


def grant(function: str, tenant: str | int) -> Operation[None]:
    """Lets another tenant call a function."""
    yield from ask("done", v1.Request(grant=v1.Grant(function=_name(function), tenant=_tenant(tenant))))


def revoke(function: str, tenant: str | int) -> Operation[None]:
    """Lets another tenant call a function no longer."""
    yield from ask("done", v1.Request(revoke=v1.Grant(function=_name(function), tenant=_tenant(tenant))))


def grants(function: str) -> Operation[list[str]]:
    """Who may call a function besides its owner."""
    granted: v1.Grants = yield from ask("grants", v1.Request(list_grants=v1.Name(name=_name(function))))
    return list(granted.tenants)


def decline(owner: str | int, undo: bool) -> Operation[None]:
    """Leaves what an owner grants to this tenant out of its lists, or no longer."""
    yield from ask("done", v1.Request(decline=v1.Decline(owner=_tenant(owner), undo=undo)))


def show_function(name: str) -> Operation[v1.FunctionInfo]:
    """One function; of one that another tenant granted, what a grantee may see."""
    shown: v1.FunctionInfo = yield from ask("function", v1.Request(show_function=v1.Name(name=_name(name))))
    return shown


def list_functions(granted: bool) -> Operation[list[v1.FunctionInfo]]:
    """This tenant's functions, and then those that others granted; or only these."""
    found: list[v1.FunctionInfo] = []
    after = "/" if granted else ""
    while True:
        page: v1.FunctionList = yield from ask("functions", v1.Request(list_functions=v1.Page(after=after)))
        found.extend(page.functions)
        after = _next_page(page.functions, after, page.more)
        if not after:
            return found


def remove_function(name: str) -> Operation[None]:
    """Removes a function."""
    yield from ask("done", v1.Request(remove_function=v1.Name(name=_name(name))))


def use_version(version: str) -> Operation[v1.FunctionInfo]:
    """Makes a version of a function the current one."""
    used: v1.FunctionInfo = yield from ask("function", v1.Request(use_version=v1.Name(name=_name(version))))
    return used


def set_alias(function: str, alias: str, number: int) -> Operation[None]:
    """Names a version of a function; with the number 0 the alias names nothing any more."""
    if not 0 <= number < 1 << 32:
        raise InvalidArgument(f"{number} is no number of a version")
    body = v1.SetAlias(function=_name(function), alias=_name(alias), number=number)
    yield from ask("done", v1.Request(set_alias=body))


def list_modules() -> Operation[list[v1.ModuleInfo]]:
    """This tenant's registered modules."""
    found: list[v1.ModuleInfo] = []
    after = ""
    while True:
        page: v1.ModuleList = yield from ask("modules", v1.Request(list_modules=v1.Page(after=after)))
        found.extend(page.modules)
        after = _next_page(page.modules, after, page.more)
        if not after:
            return found


def add_module(name: str, files: list[str | os.PathLike[str]]) -> Operation[v1.ModuleInfo]:
    """Registers files, each a variant, as a module."""
    variants = yield from _variants(_files.module_files(files))
    found: v1.ModuleInfo = yield from ask("module", v1.Request(add_module=v1.AddModule(name=name, variants=variants)))
    return found


def remove_module(name: str) -> Operation[None]:
    """Removes a module."""
    yield from ask("done", v1.Request(remove_module=v1.Name(name=_name(name))))


def add_function(
    name: str, path: str | os.PathLike[str], weights: Mapping[str, Any], replace: bool
) -> Operation[v1.FunctionInfo]:
    """Registers a function that lies on disk."""
    with _archive.opened(Path(path)) as archive:
        return (yield from add_package(name, _files.read(path, weights, archive), replace))


def add_package(name: str, package: _files.Package, replace: bool) -> Operation[v1.FunctionInfo]:
    """Registers a function that was read."""
    # What can be missing is found out before anything large travels.
    for module in package.modules:
        if not module.files:
            yield from _registered(module)
    request = v1.AddFunction(name=name, replace=replace)
    request.config_sha256 = yield from put_blob(np.frombuffer(package.config, np.uint8))
    for module in package.modules:
        variants = yield from _variants(module.files)
        registered = "" if variants else module.stem
        request.modules.append(v1.FunctionModule(name=module.name, variants=variants, registered=registered))
    for buffer, source in package.weights.items():
        sha256 = yield from put_blob(source)
        request.weights.append(v1.Weight(name=buffer, sha256=sha256))
    try:
        added: v1.FunctionInfo = yield from ask("function", v1.Request(add_function=request))
    except InvalidArgument as why:
        raise why if package.path is None else _files.refused(package.path, why) from None
    return added


def put_blob(source: _files.Source) -> Operation[bytes]:
    """Hands bytes over for a registration; returns their hash."""
    with _files.pieces(source) as (size, pieces):
        if size <= MAX_INLINE_BYTES:
            blob = v1.PutBlob(inline=b"".join(bytes(piece) for piece in pieces))
            stored: v1.BlobStored = yield from ask("blob", v1.Request(put_blob=blob))
        else:
            with _memory.sealed_memfd(pieces) as descriptor:
                stored = yield from ask("blob", v1.Request(put_blob=v1.PutBlob()), descriptor)
    return stored.sha256


def open_arena(pool: Pool, size: int) -> Operation[Mapped]:
    """Opens an arena for a caller."""
    with _memory.arena_memfd(_arena_size(size)) as descriptor:
        arena = Mapped(descriptor, size)
        try:
            yield from _open(pool, arena, descriptor, callers=True)
        except BaseException:
            # Its answer may be on its way.
            pool.give_up(arena)
            raise
        return arena


def open_session(pool: Pool, function: str) -> Operation[int]:
    """Opens a session of a function that has state; returns its number.

    One whose opening was given up before its answer came is closed by the next one that is opened.
    """
    for stray in pool.stray_sessions():
        yield from close_session(stray)
    number, given_up = 0, False

    def arrived(answer: v1.Response) -> None:
        nonlocal number
        if answer.WhichOneof("body") == "session":
            number = answer.session.session
            if given_up:
                pool.stray_session(number)

    try:
        yield from ask("session", v1.Request(open_session=v1.OpenSession(function=function)), arrived=arrived)
    except BaseException:
        given_up = True
        if number:
            pool.stray_session(number)
        raise
    return number


def close_session(number: int) -> Operation[None]:
    """Ends a session. One that is over already is none to end."""
    with contextlib.suppress(SessionLost):
        yield from ask("done", v1.Request(close_session=v1.CloseSession(session=number)))


def close_arena(pool: Pool, arena: Mapped) -> Operation[None]:
    """Stops sharing a caller's arena. Calls that use it go on."""
    pool.give_up(arena)
    yield from _close(pool, [arena])


def grow(pool: Pool, block: int) -> Operation[None]:
    """Makes room for a block in a pool: opens another arena, in the place of those that are of no use to it.

    One at a time: several that run side by side would each open one.
    """
    size = pool.lacks(block)
    if size is None:
        return
    with _memory.arena_memfd(_arena_size(size)) as descriptor:
        yield from _open(pool, Mapped(descriptor, size), descriptor, callers=False)


def _open(pool: Pool, arena: Mapped, descriptor: int, *, callers: bool) -> Operation[None]:
    """Opens an arena, in the place of those that are of no use. The pool has it when the answer arrives, whoever waits."""

    def arrived(answer: v1.Response) -> None:
        if answer.WhichOneof("body") == "arena":
            pool.opened(arena, answer.arena.arena, callers=callers)

    yield from _close(pool, pool.unused(for_arena_of=len(arena)))
    request = v1.Request(open_arena=v1.OpenArena())
    try:
        yield from ask("arena", request, descriptor, arrived=arrived)
    except ResourceExhausted:
        idle = pool.unused(for_arena_of=len(arena), all_of_them=True)
        if not idle:
            raise
        yield from _close(pool, idle)
        yield from ask("arena", request, descriptor, arrived=arrived)


def _close(pool: Pool, arenas: list[Mapped]) -> Operation[None]:
    """Closes arenas. One whose closing was given up before its answer came may be closed twice, which changes nothing."""
    for arena in arenas:
        yield from _close_one(pool, arena)


def _close_one(pool: Pool, arena: Mapped) -> Operation[None]:
    request = v1.Request(close_arena=v1.CloseArena(arena=arena.id))
    with contextlib.suppress(NotFound):
        yield from ask("done", request, arrived=lambda _: pool.closed(arena))
    pool.closed(arena)


def list_tenants() -> Operation[list[v1.TenantInfo]]:
    """All tenants with their usage and quotas."""
    found: list[v1.TenantInfo] = []
    after = ""
    while True:
        page: v1.TenantList = yield from ask("tenants", v1.Request(list_tenants=v1.Page(after=after)))
        found.extend(page.tenants)
        after = _next_page(page.tenants, after, page.more)
        if not after:
            return found


def drain() -> Operation[None]:
    """Lets running work finish, accepts no more, and ends the supervisor."""
    yield from ask("done", v1.Request(drain=v1.Empty()))


def settings(change: Mapping[str, str]) -> Operation[dict[str, str]]:
    """Changes settings, then reads all of them."""
    values: v1.SettingsValues = yield from ask("settings", v1.Request(settings=v1.Settings(change=change)))
    return dict(values.values)


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{described(name)} where a name is expected")
    return name


def _tenant(tenant: object) -> str:
    """A tenant by its name or its uid."""
    is_uid = isinstance(tenant, int) and not isinstance(tenant, bool) and tenant >= 0
    return str(tenant) if is_uid else _name(tenant)


def _arena_size(size: int) -> int:
    if not 0 < size <= MAX_ARENA_BYTES:
        raise InvalidArgument(f"an arena of {size} bytes, expected 1 to {MAX_ARENA_BYTES}")
    return size


def _next_page(entries: Any, after: str, more: bool) -> str:
    """Behind which name the next page begins; empty where there is none."""
    if not more:
        return ""
    last: str = entries[-1].name if entries else ""
    # What others granted, as OWNER/NAME, follows a tenant's own.
    if ("/" in last, last) <= ("/" in after, after.lstrip("/")):
        raise ProtocolError("the supervisor's lists do not go on")
    return last


def _variants(files: tuple[_files.ModuleFile, ...]) -> Operation[list[v1.Variant]]:
    variants = []
    for file in files:
        sha256 = yield from put_blob(file.source)
        variants.append(v1.Variant(format=file.format, arch=file.arch, sha256=sha256))
    return variants


def _registered(module: _files.Module) -> Operation[None]:
    try:
        yield from ask("module", v1.Request(show_module=v1.Name(name=module.stem)))
    except NotFound:
        raise InvalidArgument(
            f"module {module.name!r} is missing: put a file {module.stem}.{{wasm,ptx,cubin,fatbin,hsaco}} beside what the "
            f"configuration names, or register one as {module.stem!r}"
        ) from None
