"""Packages on a GPU without Pappus, launch by launch: ``python3 -m bench_models.launches DIR [CASE...] [--top N]``.

What the blueprint says is done by CUDA's driver on memory of PyTorch's: is the output right, how long do all launches take as
one CUDA graph, beside PyTorch's own, and which of them take longest; and how long each candidate that a package carries takes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pappus.package import sizes
from pappus.package.points import REPEAT

from .beside import graph
from .cases import CASES, Case
from .operations import OPERATIONS
from .prepare import INPUT, prepare

# Argument forms of blueprints that kernels take by value.
FORMS = {
    "I8": ctypes.c_int8,
    "U8": ctypes.c_uint8,
    "I16": ctypes.c_int16,
    "U16": ctypes.c_uint16,
    "I32": ctypes.c_int32,
    "U32": ctypes.c_uint32,
    "I64": ctypes.c_int64,
    "U64": ctypes.c_uint64,
    "F32": ctypes.c_float,
    "F64": ctypes.c_double,
    "Bool": ctypes.c_bool,
}
_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_STATIC_SHARED = 48 << 10


class Driver:
    """CUDA's driver library."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: Any) -> None:
        """Calls a function; an error with its number where it fails."""
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: CUDA error {code}")


class Loaded:
    """A package's buffers and kernels on the GPU; ``steps`` has a name and what does it for every step."""

    def __init__(self, driver: Driver, package: Path) -> None:
        document = json.loads((package / "function.json").read_text())
        self.driver = driver
        self.blueprint = document["blueprint"]
        self.functions: dict[str, ctypes.c_void_p] = {}
        self.buffers: dict[str, torch.Tensor] = {}
        kernels = {kernel["kernel_name"]: kernel["module_name"] for kernel in document["kernels"]}
        for module in document["modules"]:
            stem = Path(module["path"]).with_suffix("")
            (file,) = (package / stem.parent).glob(f"{stem.name}.sm_*.cubin")
            handle = ctypes.c_void_p()
            driver("cuModuleLoadData", ctypes.byref(handle), file.read_bytes())
            for kernel in [name for name, of in kernels.items() if of == module["module_name"]]:
                self.functions[kernel] = ctypes.c_void_p()
                driver("cuModuleGetFunction", ctypes.byref(self.functions[kernel]), handle, kernel.encode())
        for name, path in document["weight_files"].items():
            raw = np.load(package / path) if path.endswith(".npy") else np.fromfile(package / path, np.uint8)
            self.buffers[name] = torch.from_numpy(np.atleast_1d(raw).reshape(-1).view(np.uint8).copy()).cuda()
        for name in self.blueprint["inputs"]:
            self.buffers[name] = torch.from_numpy(np.fromfile(package / INPUT, np.uint8)).cuda()
        for name, size in self.blueprint["buffers"].items():
            self.buffers[name] = torch.zeros(self.size(size), dtype=torch.uint8, device="cuda")
        self.steps = [self._step(action) for action in self.blueprint["control_flow"]]

    def size(self, size: Any) -> int:
        """The number of a size of the blueprint."""
        if not isinstance(size, dict):
            return int(size)
        return sizes.evaluate(size, lambda name: self.buffers[name].numel(), {})

    def __call__(self) -> None:
        """All steps, on PyTorch's current stream."""
        for _, step in self.steps:
            step()

    def output(self, like: torch.Tensor) -> torch.Tensor:
        """The only output, as PyTorch has it."""
        (name,) = self.blueprint["outputs"]
        return self.buffers[name].view(like.dtype).reshape(like.shape)

    def _step(self, action: dict[str, Any]) -> tuple[str, Callable[[], Any]]:
        ((kind, body),) = action.items()
        if kind == "ExecKernel":
            return self._launch(*body)
        if kind == "Copy":
            start, to, length = (self.size(body[key]) for key in ("from_offset", "to_offset", "bytes"))
            source, target = self.buffers[body["from"]][start:][:length], self.buffers[body["to"]][to:][:length]
            return "copy", lambda: target.copy_(source)
        if kind == "Fill":
            start, length = self.size(body["offset"]), self.size(body["bytes"])
            filled = self.buffers[body["buffer"]][start:][:length]
            return "fill", lambda: filled.fill_(body["byte"])
        if kind == "Repeat":
            times, inner = self.size(body[0]), [self._step(each)[1] for each in body[1]]
            return "repeated", lambda: [step() for _ in range(times) for step in inner]
        raise RuntimeError(f"{kind} is no step of a model's package")

    def _launch(self, name: str, arguments: list[Any], launch: dict[str, Any]) -> tuple[str, Callable[[], Any]]:
        values = [self._argument(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        grid = [self.size(launch[f"grid_dim_{axis}"]) for axis in "xyz"]
        block = [self.size(launch[f"block_dim_{axis}"]) for axis in "xyz"]
        shared = self.size(launch["shared_mem_bytes"])
        function = self.functions[name]
        if shared > _STATIC_SHARED:
            self.driver("cuFuncSetAttribute", function, _DYNAMIC_SHARED, shared)

        def launched(kept: Any = values) -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            self.driver("cuLaunchKernel", function, *grid, *block, shared, stream, pointers, None)

        return f"{name} {'x'.join(map(str, grid))} of {block[0]}, {shared} B", launched

    def _argument(self, argument: dict[str, Any]) -> Any:
        ((form, value),) = argument.items()
        if form != "Ptr":
            return FORMS[form](value if form.startswith("F") else self.size(value))
        name, offset = (value, 0) if isinstance(value, str) else (value["buffer"], self.size(value["offset"]))
        return ctypes.c_uint64(self.buffers[name].data_ptr() + offset)


def microseconds(call: Callable[[], Any], times: int = 30) -> float:
    """The median time between two events around a call."""
    found = []
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1000)
    return sorted(found)[times // 2]


def repeated(call: Callable[[], Any]) -> Callable[[], Any]:
    """A call :data:`REPEAT` times, as one graph."""

    def all_of_them() -> None:
        for _ in range(REPEAT):
            call()

    return graph(all_of_them).replay


def compare(driver: Driver, case: Case, package: Path, top: int) -> None:
    """Prints what was found of a model."""
    prepare(case, package)
    loaded, example = Loaded(driver, package), case.example().cuda()
    model = case.model().cuda()
    with torch.inference_mode():
        wanted = model(example)
        exact = wanted.double()
        if case.dtype != torch.float32:
            exact = case.model().float().cuda()(example if case.words else example.float()).double()
        loaded()
        torch.cuda.synchronize()
        found = loaded.output(wanted)
        scale = exact.abs().max()
        errors = [float((each.double() - exact).abs().max() / scale) for each in (found, wanted)]
        ours = microseconds(graph(loaded).replay)
        theirs = {}
        torch.backends.cudnn.benchmark = True
        theirs["graph"] = microseconds(graph(lambda: model(example)).replay)
        if example.dim() == 4:
            model, example = (each.to(memory_format=torch.channels_last) for each in (model, example))
            theirs["graph, channels last"] = microseconds(graph(lambda: model(example)).replay)
    shown = ", ".join(f"PyTorch's {way} {time:.0f} us ({ours / time:.2f})" for way, time in theirs.items())
    print(f"{case.name}: {ours:.0f} us, {len(loaded.steps)} steps; {shown}; error {errors[0]:.1e}, PyTorch's {errors[1]:.1e}")
    # Each launch alone, as often as it takes to see it.
    times = [(microseconds(repeated(step), 5) / REPEAT, at, name) for at, (name, step) in enumerate(loaded.steps)]
    print(f"  alone, all together: {sum(time for time, _, _ in times):.0f} us")
    for time, at, name in sorted(times, reverse=True)[:top]:
        print(f"  {time:8.1f} us  step {at:3} {name}")
    sys.stdout.flush()


def candidates(driver: Driver, package: Path) -> None:
    """Prints the times of all candidates of each operation that a package carries; the first is what is taken untuned."""
    points = package / "tuning/points.json"
    for at, point in enumerate(json.loads(points.read_text()) if points.is_file() else []):
        times = []
        for number, choice in enumerate(point["candidates"]):
            folder = package / "tuning" / str(at) / str(number)
            if (folder / "function.json").is_file():
                try:
                    times.append((microseconds(graph(Loaded(driver, folder)).replay, 5) / REPEAT, number, choice))
                except RuntimeError as error:
                    print(f"  left out: {choice}: {error}")
        if times:
            first = next((time for time, number, _ in times if number == 0), 0.0)
            print(f"  {point['operation']}: untuned {first:.1f} us, best {min(times)[0]:.1f}")
            for time, number, choice in sorted(times)[:4]:
                print(f"    {time:7.1f} us  {number} {choice}")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares packages of a folder."""
    parser = argparse.ArgumentParser(prog="python3 -m bench_models.launches", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the packages are")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="these models; all that have packages, without")
    parser.add_argument("--top", type=int, default=12, metavar="N", help="so many of the longest launches are shown (12)")
    given = parser.parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.zeros(1, device="cuda")
    driver, failed = Driver(), 0
    for case in (*CASES, *OPERATIONS):
        package = given.folder / case.name
        if (given.cases and case.name not in given.cases) or not (package / "function.json").is_file():
            continue
        try:
            compare(driver, case, package, given.top)
            candidates(driver, package)
        except RuntimeError as error:
            failed += 1
            print(f"{case.name}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
