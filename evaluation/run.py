"""Measures the experiments of a folder through released programs, and writes the report: `scripts/evaluate` calls it.

What was measured stays in results/NAME.json, point by point; the report is made of that file alone, so `--report` makes it again
without measuring."""

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
import report

try:
    import tomllib
except ImportError:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent


def experiments():
    """All of them, in the order of their files; the name is the file's without number and ending."""
    for path in sorted((HERE / "experiments").glob("*.toml")):
        yield {"name": re.sub(r"^\d+-", "", path.stem), **tomllib.loads(path.read_text())}


def main():
    parser = argparse.ArgumentParser(prog="scripts/evaluate", description=__doc__)
    parser.add_argument("where", choices=["cpu"], help="the device")
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, such as matmul-hot [all]")
    parser.add_argument("--programs", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="how often each is measured [5]")
    parser.add_argument("--report", action="store_true", help="measure nothing, make the report again")
    asked = parser.parse_args()
    every = list(experiments())
    unknown = set(asked.names) - {one["name"] for one in every}
    if unknown:
        parser.error(f"no such experiment: {', '.join(sorted(unknown))}; there are {', '.join(one['name'] for one in every)}")
    file = HERE / "results" / f"{asked.where}.json"
    results = json.loads(file.read_text()) if file.exists() else {"experiments": {}}
    if not asked.report:
        chosen = [one for one in every if not asked.names or one["name"] in asked.names]
        measure(chosen, asked, results)
        file.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    report.write(every, results, HERE.parent / "docs")
    print(f"wrote docs/evaluation.md and its pictures, from {file.relative_to(HERE.parent)}", file=sys.stderr)


def measure(chosen, asked, results):
    began = time.monotonic()

    def say(text):
        print(f"{time.monotonic() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    with bed.Bed(asked.programs) as place:
        say("floors: kernels in process, by pappus-bench")
        results["floors"] = floors.measure(place)
        for nth, one in enumerate(chosen):
            say(f"experiment {nth + 1} of {len(chosen)}: {one['title']}")
            busy = bed.load()
            at = time.monotonic()
            points = measures.repetitions(one, place, asked.repetitions, say)
            results["experiments"][one["name"]] = {
                "points": points,
                "repetitions": asked.repetitions,
                "seconds": round(time.monotonic() - at),
                "load_before": round(busy, 2),
                "machine": bed.machine(asked.programs),
            }
    say("measured")


main()
