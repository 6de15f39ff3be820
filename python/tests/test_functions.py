"""Registration from files, grants and tenants, and the lists and figures of a supervisor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
from fixture import KERNELS, VEC_ADD, Supervisor
from pappus import _signature

A = np.float32([1, 2, 3])


def write(folder: Path, name: str = "function.json", **changes: Any) -> Path:
    """A copy of vec_add with its module beside it, with changes to its JSON."""
    shutil.copy(KERNELS / "built/linalg.wasm", folder / "linalg.wasm")
    config = json.loads(VEC_ADD.read_text())
    config["modules"] = [{"module_name": "linalg", "path": "linalg.wasm"}]
    config["blueprint"] |= changes.pop("blueprint", {})
    path = folder / name
    path.write_text(json.dumps(config | changes))
    return path


def test_a_folder_is_a_function(client: pappus.Client, tmp_path: Path) -> None:
    write(tmp_path)
    shutil.copy(KERNELS / "built/linalg.ptx", tmp_path / "linalg.sm_90.ptx")
    function = client.add_function("folder", tmp_path)
    np.testing.assert_array_equal(function(A, A), 2 * A)
    assert str(function) == "<Function folder: A: f32[…], B: f32[…] → C: f32[…]>"
    variants = [(v.format, v.arch) for v in client.show_function("folder").modules[0].variants]
    assert variants == [("ptx", "sm_90"), ("wasm", "")]
    # The identical one again succeeds; another one takes its place only where that is asked for.
    client.add_function("folder", tmp_path / "function.json")
    write(tmp_path, blueprint={"types": {}})
    with pytest.raises(pappus.AlreadyExists):
        client.add_function("folder", tmp_path)
    client.add_function("folder", tmp_path, replace=True)
    assert "folder" in [info.name for info in client.functions()]
    client.remove_function("folder")
    with pytest.raises(pappus.NotFound):
        client.function("folder")


def test_weights_come_from_arrays_and_files(client: pappus.Client, tmp_path: Path) -> None:
    buffers = {"C": {"Sizeof": "W"}}
    copy = [{"Copy": {"from": "W", "to": "C"}}]
    blueprint = {"inputs": [], "weights": ["W"], "buffers": buffers, "types": {}, "control_flow": copy}
    large = np.arange(300_000, dtype=np.float32)
    for values in (A, large):
        np.save(tmp_path / "w.npy", values)
        (tmp_path / "w.bin").write_bytes(values.tobytes())
        write(tmp_path, weight_files={"W": "w.npy"}, blueprint=blueprint)
        for weights in ({}, {"W": values}, {"W": tmp_path / "w.npy"}, {"W": str(tmp_path / "w.bin")}):
            function = client.add_function("weights", tmp_path, weights=weights, replace=True)
            np.testing.assert_array_equal(function.options(dtypes={"C": "f32"})(), values)
    write(tmp_path, blueprint=blueprint)
    for given, words in (
        ({}, "have no contents"),
        ({"V": A}, "no weights buffer"),
        ({"W": tmp_path / "absent"}, "there is no file"),
    ):
        with pytest.raises(pappus.InvalidArgument, match=words):
            client.add_function("weights", tmp_path, weights=given, replace=True)


def test_what_is_no_function_on_disk_is_refused(client: pappus.Client, tmp_path: Path) -> None:
    def refused(words: str, path: Path = tmp_path) -> None:
        with pytest.raises(pappus.InvalidArgument, match=words):
            client.add_function("none", path)

    refused("no such file or folder", tmp_path / "absent")
    refused("a folder with 0 .json files")
    path = write(tmp_path, "a.json")
    path.write_text("{")
    refused("a.json:1:2: it is no JSON: the text ends")
    path.write_text('{"modules": [{"module_name": "m", "path": "missing.wasm"}], "blueprint": {}}')
    refused("module 'm' is missing")
    path.write_text("")
    refused("has 0 bytes")
    write(tmp_path, "b.json")
    refused("a folder with 2 .json files")
    (tmp_path / "a.json").unlink()
    (tmp_path / "linalg.wasm").write_bytes(b"\0asm")
    with pytest.raises(pappus.InvalidArgument):
        client.add_function("none", tmp_path)


def test_modules_are_registered_by_themselves(client: pappus.Client, tmp_path: Path) -> None:
    write(tmp_path, modules=[{"module_name": "linalg", "path": "registered.wasm"}])
    client.add_module("registered", [tmp_path / "linalg.wasm"])
    assert "registered" in [module.name for module in client.modules()]
    np.testing.assert_array_equal(client.add_function("by_name", tmp_path)(A, A), 2 * A)
    client.remove_function("by_name")
    client.remove_module("registered")
    with pytest.raises(pappus.InvalidArgument, match=r"expected one in \.wasm"):
        client.add_module("m", [tmp_path / "function.json"])


def test_a_function_is_granted_and_revoked(house: tuple[pappus.Client, pappus.Client], monkeypatch: pytest.MonkeyPatch) -> None:
    acme, globex = house
    acme.add_function("vec_add", VEC_ADD)
    with pytest.raises(pappus.NotFound):
        globex.function("acme/vec_add")
    acme.grant("vec_add", "globex")
    assert acme.grants("vec_add") == ["globex"]
    assert [info.name for info in globex.functions()] == ["acme/vec_add"]
    granted = globex.function("acme/vec_add")
    # A grantee does not see how large outputs are, and gets them all the same.
    result = granted.options(dtypes={"A": "f32", "B": "f32"})(A, A)
    np.testing.assert_array_equal(result, 2 * A)
    # With `out`, the place is as large as that, in an arena or not.
    monkeypatch.setattr(_signature, "UNKNOWN_OUTPUT_BYTES", A.nbytes // 2)
    for out in (np.zeros_like(A), globex.arena(A.nbytes).empty(A.shape, A.dtype)):
        assert granted.options(dtypes={"A": "f32", "B": "f32", "C": "f32"}, out=out)(A, A) is out
        np.testing.assert_array_equal(out, 2 * A)
    acme.revoke("vec_add", "globex")
    with pytest.raises(pappus.NotFound):
        granted(A, A)


def test_what_a_declined_owner_grants_is_called_by_its_full_name_and_not_listed(
    house: tuple[pappus.Client, pappus.Client],
) -> None:
    acme, globex = house
    acme.add_function("vec_add", VEC_ADD)
    globex.add_function("own", VEC_ADD)
    acme.grant("vec_add", "globex")
    assert [info.name for info in globex.functions()] == ["own", "acme/vec_add"]
    assert [info.name for info in globex.functions(granted=True)] == ["acme/vec_add"]
    globex.decline("acme")
    globex.decline(1000)
    assert list(globex.quota().declined) == ["1000", "acme"]
    assert globex.functions(granted=True) == []
    np.testing.assert_array_equal(globex.function("acme/vec_add")(A, A), 2 * A)
    globex.decline("acme", undo=True)
    assert [info.name for info in globex.functions(granted=True)] == ["acme/vec_add"]
    with pytest.raises(TypeError, match="where a name is expected"):
        globex.remove_function(3)  # type: ignore[arg-type]
    for wrong in (True, -1):
        with pytest.raises(TypeError, match="where a name is expected"):
            globex.decline(wrong)


def test_a_wrong_configuration_is_told_with_file_line_and_column(client: pappus.Client, tmp_path: Path) -> None:
    config = tmp_path / "function.json"
    (tmp_path / "linalg.wasm").write_bytes(b"\0asm")
    for text, told in [
        ("{", [f"{config}:1:2: it is no JSON: the text ends"]),
        (
            '{"module_path": "linalg.wasm", "kernels": ["vec_add_f"],\n "blueprint": {"inputs": ["A"], "outputs": ["C"],\n'
            '  "buffers": {"C": {"Sizof": "A"}}, "control_flow": [{"Copy": {"from": "a", "to": "C"}}]}}',
            [
                f'{config}:3:21: at blueprint.buffers.C.Sizof: unknown size "Sizof", did you mean "Sizeof"?',
                f'{config}:3:72: at blueprint.control_flow[0].Copy.from: unknown buffer "a", did you mean "A"?',
            ],
        ),
    ]:
        config.write_text(text)
        with pytest.raises(pappus.InvalidArgument) as caught:
            client.add_function("wrong", tmp_path)
        lines = caught.value.message.split("\n")
        assert len(lines) == len(told), lines
        for line, words in zip(lines, told, strict=True):
            assert line.startswith(words), line


def test_a_tenant_sees_what_it_has(house: tuple[pappus.Client, pappus.Client]) -> None:
    acme, _ = house
    quota = acme.quota()
    assert quota.name == "acme"
    assert "arena-bytes" in [entry.name for entry in quota.quotas]
    assert not acme.status().draining


def test_the_operator_drains_and_sets(start: Callable[..., Supervisor]) -> None:
    supervisor = start()
    with supervisor.connect() as client, pytest.raises(pappus.PermissionDenied):
        client.drain()
    with supervisor.admin() as admin:
        assert admin.settings({"default-deadline": "5s"})["default-deadline"] == "5s"
        admin.tenants()
        admin.drain()
    assert supervisor.process.wait(60) == 0


def test_a_replacement_is_taken_back(client: pappus.Client, tmp_path: Path) -> None:
    write(tmp_path)
    client.add_function("versions", tmp_path)
    write(tmp_path, blueprint={"types": {}})
    client.add_function("versions", tmp_path, replace=True)
    (info,) = [info for info in client.functions() if info.name == "versions"]
    assert (info.number, info.current, list(info.kept), list(info.aliases)) == (2, 2, [1], [])
    np.testing.assert_array_equal(client.function("versions@1")(A, A), 2 * A)
    client.set_alias("versions", "live", 1)
    np.testing.assert_array_equal(client.function("versions:live")(A, A), 2 * A)
    used = client.use_version("versions:live")
    assert (used.number, list(used.kept), [(a.name, a.number) for a in used.aliases]) == (1, [2], [("live", 1)])
    client.remove_alias("versions", "live")
    with pytest.raises(pappus.NotFound):
        client.function("versions:live")
    with pytest.raises(pappus.InvalidArgument):
        client.set_alias("versions", "live", -1)
    client.remove_function("versions@2")
    assert list(client.show_function("versions").kept) == []
