"""Bare floors beside the experiments: kernels alone, in the process that measures, by `pappus-bench`. No server, no isolation and no
clearing is around them, so no dedicated server can be faster."""

import json
import subprocess

# Parts of pappus-bench, and how many rounds of each.
PARTS = ["wasm"]
ROUNDS = 3


def measure(place):
    """Nanoseconds by what was measured."""
    file = place.folder / "floors.json"
    command = [place.program("pappus-bench"), *PARTS, "--rounds", str(ROUNDS), "--json", file]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    figures = json.loads(file.read_text())["figures"]
    return {figure["what"]: figure["value"] for figure in figures if figure["unit"] == "nanoseconds"}
