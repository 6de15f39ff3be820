"""What the fence costs packaged models: ``python3 -m bench_models.fenced DIR --device cuda:0 --out FILE``.

Execution on the device, one call at a time: in a worker of the tenant (``isolation=process``) and in one that tenants share
(``isolation=auto``), in alternation, so that what clocks do meanwhile is the same for both. Both run the package's PTX, which
the driver's compiler makes machine code of; beside them the package's own machine code, which is what runs where nothing is
shared. Fenced functions are registered to run in a shared worker or not at all, and all results are compared. Prints a table;
the file has everything, after every round.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import serving

# As in `prepare`, which needs PyTorch: this process does not.
INPUT = "input.bin"
MODELS = ("resnet18-1-fp32", "resnet18-8-fp16", "gpt-bf16", "mobilenet-8-fp32")
# Forms of a model: its package, the same without machine code, that in a shared worker.
PACKAGED, PLAIN, FENCED = FORMS = ("packaged", "plain", "fenced")
# What a supervisor's device is told, and what is called there. Nobody is to be moved elsewhere because a processor was busy.
SETTINGS = {"isolation=process": (PACKAGED, PLAIN), "isolation=auto,shared-limit=1s": (FENCED,)}
ROUNDS = 3
EACH, MEAN = 1.10, 1.03
# What results are compared with, and how much more of a difference that may be: the plain form has another compiler.
BESIDE = {PLAIN: (PACKAGED, 10), FENCED: (PLAIN, 1)}
# Differences, relative to the largest value.
NEAR = {"f32": 1e-5, "f16": 2e-3, "bf16": 2e-3}


def configured(package: Path, form: str) -> Path:
    """The configuration of a form, in a file beside the package's own."""
    document = json.loads((package / "function.json").read_text())
    if form != PACKAGED:
        (package / "texts").mkdir(exist_ok=True)
        for file in (package / "modules").iterdir():
            if file.suffix not in (".cubin", ".fatbin"):
                shutil.copy(file, package / "texts")
        for module in document["modules"]:
            module["path"] = f"texts/{Path(module['path']).name}"
    if form == FENCED:
        document["isolation"] = "shared"
    file = package / f"{form}.json"
    file.write_text(json.dumps(document))
    return file


def check(served: serving.Served, configuration: Path) -> None:
    """An error where a module cannot run in a shared worker, with what is in the way."""
    modules = served.run("function", "check", str(configuration))["modules"]
    shared = {module["name"] for module in modules if module["sharing"]["shared"]}
    for module in modules:
        if module["name"] not in shared:
            ways = [f"{way.get('kernel', '')} {way.get('what', '')}: {way['why']}" for way in module["sharing"]["in_the_way"]]
            raise RuntimeError(f"{module['file']} cannot run in a shared worker: {'; '.join(ways)}")


def add(served: serving.Served, package: Path, form: str) -> None:
    """Registers a form of a model."""
    configuration = configured(package, form)
    if form == FENCED:
        check(served, configuration)
    served.run("function", "add", f"{package.name}-{form}", str(configuration), "--replace")


def execution(served: serving.Served, package: Path, form: str, calls: int) -> int:
    """How long calls have the device, in the median; their output stays beside the package."""
    blueprint = json.loads((package / "function.json").read_text())["blueprint"]
    (given,), (wanted,) = blueprint["inputs"], blueprint["outputs"]
    data = [f"--input={given}={package / INPUT}", f"--output={wanted}={package / form}.bin"]
    # Until every lane has its graph, and clocks have risen.
    served.run("invoke", f"{package.name}-{form}", *data, "--repeat", str(max(calls // 4, 50)))
    latency = served.run("invoke", f"{package.name}-{form}", *data, "--repeat", str(calls))["latency"]
    # Where a process ended under it, or it was too long there, calls have gone elsewhere.
    for device in served.run("status")["devices"]:
        if device["kept_apart"]:
            raise RuntimeError(f"calls were kept out of shared workers: {device['kept_apart']}")
    return int(latency["execute_ns"]["p50"])


def values(file: Path, kind: str) -> Any:
    """An output's, in float64."""
    if kind == "bf16":
        return (np.fromfile(file, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.fromfile(file, {"f32": np.float32, "f16": np.float16}[kind]).astype(np.float64)


def difference(package: Path, form: str) -> tuple[float, float]:
    """To what the form beside it answers, and what that may be; an error where either says nothing."""
    other, more = BESIDE[form]
    blueprint = json.loads((package / "function.json").read_text())["blueprint"]
    kind = blueprint["types"][blueprint["outputs"][0]]["dtype"]
    ours, wanted = (values(package / f"{each}.bin", kind) for each in (form, other))
    if ours.shape != wanted.shape or not np.isfinite([ours, wanted]).all() or not wanted.any():
        raise RuntimeError(f"{ours.size} values, {wanted.size} of the {other} form: not all numbers, or all zero")
    return float(np.abs(ours - wanted).max() / np.abs(wanted).max()), more * NEAR[kind]


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """Lines as `pappus-bench` has them."""

    def line(what: str, value: float, unit: str = "", most: float | None = None) -> str:
        judged = "" if most is None else f"{f'≤ {most:.2f}':>10} {'ok' if value <= most else 'missed'}"
        return f"  {what:<70} {f'{value:.3f}{unit}':>12} {judged}".rstrip()

    lines, ratios = [], []
    for name, row in found.items():
        if "failed" in row:
            lines.append(f"FAILED {name}: {row['failed']}")
            continue
        packaged, plain, fenced = (statistics.median(row[form]) for form in FORMS)
        ratios.append(fenced / plain)
        lines.append(line(f"{name}, one call at a time, execution, plain PTX, p50", plain / 1e6, " ms"))
        lines.append(line(f"{name}, …, fenced / plain PTX", fenced / plain, most=EACH))
        lines.append(line(f"{name}, …, fenced / machine code of the package", fenced / packaged))
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        lines.append(line(f"execution, fenced / plain PTX, geometric mean of {len(ratios)} models", mean, most=MEAN))
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures some models that have packages in a folder."""
    parser = argparse.ArgumentParser(prog="python3 -m bench_models.fenced", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--device", default="cuda:0", help="without settings")
    parser.add_argument("--programs", type=Path, default=Path("target/gpu"), help="where pappus and pappus-supervisor are")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help=f"this model ({', '.join(MODELS)})")
    parser.add_argument("--calls", type=int, default=1000, metavar="N", help="calls of each model and form in a round (1000)")
    parser.add_argument("--out", type=Path, default=Path("target/gpu-models-fenced.json"), help="what was found")
    parser.add_argument("--log", type=Path, default=Path("target/gpu-models-fenced.log"), help="supervisors' logs, numbered")
    given = parser.parse_args(arguments)
    found: dict[str, dict[str, Any]] = {name: {form: [] for form in FORMS} for name in given.only or MODELS}
    with tempfile.TemporaryDirectory(prefix="pappus-fenced-") as home:
        for at in range(ROUNDS):
            for settings, forms in SETTINGS.items():
                # What is registered stays, with the code that the driver made of it.
                state = Path(home) / settings
                log = given.log.with_suffix(f".{at + 1}-{settings.removeprefix('isolation=')}{given.log.suffix}")
                with serving.supervisor(given.programs, f"{given.device}:{settings}", log, state) as served:
                    for name, row in found.items():
                        _round(served, given.folder / name, row, forms, first=at == 0, calls=given.calls)
            given.out.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(table(found)))
    return 1 if any("failed" in row for row in found.values()) else 0


def _round(
    served: serving.Served, package: Path, row: dict[str, Any], forms: Sequence[str], *, first: bool, calls: int
) -> None:
    """Measures forms of one model, unless it has failed."""
    for form in forms:
        if "failed" in row:
            return
        try:
            if first:
                add(served, package, form)
            row[form].append(execution(served, package, form, calls))
            if form in BESIDE:
                row[f"{form}_difference"], most = difference(package, form)
                if row[f"{form}_difference"] > most:
                    raise RuntimeError(f"its results differ by {row[f'{form}_difference']:.1e}, at most {most:.0e} are right")
        except (RuntimeError, OSError) as error:
            row["failed"] = f"{form}: {error}"
        print(f"{package.name} {form}: {row.get('failed') or f'{row[form][-1] / 1e6:.3f} ms'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
