"""Measures the experiments of a folder through released programs, and writes the report: `scripts/evaluate` calls it.

What was measured stays in results/cpu.json, results/gpu.json and, of two GPUs, results/gpus.json, point by point; the report is made of these files alone, so
`--report` makes it again without measuring, and a machine with a GPU needs neither Rust nor the plotting library (`--measure`)."""

import argparse
import json
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bed
import floors
import measures

try:
    import tomllib
except ImportError:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
WHERE = ["cpu", "gpu", "gpus"]


def experiments(where):
    """Those of a device, in the order of their files; the name is the file's without number and ending.

    What differs on a GPU is in the table `gpu`; experiments without one are not made there, and those with `only = "gpu"`
    nowhere else. What differs on two GPUs is in the table `gpu.two`, and they are for experiments that have one."""
    for path in sorted((HERE / "experiments").glob("*.toml")):
        told = tomllib.loads(path.read_text())
        other = told.pop("gpu", None)
        two = (other or {}).pop("two", None)
        name = re.sub(r"^\d+-", "", path.stem)
        if where == "cpu" and told.get("only", "cpu") == "cpu":
            yield {"name": name, **told}
        elif where == "gpu" and other is not None:
            told.pop("floor", None)
            yield {"name": name, **told, **other}
        elif where == "gpus" and two is not None:
            told.pop("floor", None)
            yield {"name": name, **told, **other, **two}


def main():
    parser = argparse.ArgumentParser(prog="scripts/evaluate", description=__doc__)
    parser.add_argument("where", choices=WHERE, help="the device; gpus: two of them")
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, such as matmul-hot [all]")
    parser.add_argument("--programs", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="how often each is measured [5]")
    parser.add_argument("--report", action="store_true", help="measure nothing, make the report again")
    parser.add_argument("--measure", action="store_true", help="measure, make no report")
    asked = parser.parse_args()
    every = list(experiments(asked.where))
    unknown = set(asked.names) - {one["name"] for one in every}
    if unknown:
        parser.error(f"no such experiment: {', '.join(sorted(unknown))}; there are {', '.join(one['name'] for one in every)}")
    if not asked.report:
        chosen = [one for one in every if not asked.names or one["name"] in asked.names]
        measure(chosen, asked, results_of(asked.where))
    if not asked.measure:
        import report

        found = {where: (list(experiments(where)), results_of(where)) for where in WHERE}
        report.write(found, HERE.parent / "docs")
        print("wrote docs/evaluation.md and its pictures, from evaluation/results", file=sys.stderr)


def file_of(where):
    return HERE / "results" / f"{where}.json"


def results_of(where):
    file = file_of(where)
    return json.loads(file.read_text()) if file.exists() else {"experiments": {}}


def measure(chosen, asked, results):
    """Measures experiments; what was found is in the file after each repetition."""
    began = time.monotonic()

    def say(text):
        print(f"{time.monotonic() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    with bed.Bed(asked.programs, asked.where) as place:
        if asked.where == "cpu":
            say("floors: kernels in process, by pappus-bench")
            results["floors"] = floors.measure(place)
        for nth, one in enumerate(chosen):
            say(f"experiment {nth + 1} of {len(chosen)}: {one['title']}")
            busy = bed.load()
            at = time.monotonic()
            points = []
            for nth in range(asked.repetitions):
                points += measures.repetition(one, place, nth, say)
                if not points:
                    say(f"{one['name']} was not measured: it needs packages (scripts/gpu-check models-build) and PyTorch")
                    break
                results["experiments"][one["name"]] = {
                    "points": points,
                    "repetitions": nth + 1,
                    "seconds": round(time.monotonic() - at),
                    "load_before": round(busy, 2),
                    "machine": bed.machine(asked.programs, asked.where),
                }
                file_of(asked.where).write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    say("measured")


main()
