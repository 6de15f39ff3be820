"""docs/evaluation.md and its pictures, made of what was measured and of nothing else."""

import plots

COLUMNS = [
    ("p50_ms", "p50, ms"),
    ("p99_ms", "p99, ms"),
    ("ms", "ms"),
    ("highest_per_s", "highest rate, 1/s"),
    ("deviation_percent", "furthest from an equal share of device time, %"),
    ("answers_deviation_percent", "… of answers, %"),
    ("answers_per_s", "answers, 1/s"),
    ("failed_percent", "failed, %"),
    ("faults", "the other's faults"),
    ("refused", "the other's refused calls"),
    ("restarts", "new starts of the tenant's own process"),
]
# Latencies of this many times the floor are told apart from noise.
TWICE = 2.0
# Fewer answers than this part of another's are told.
NOTICED = 0.95

HEAD = """# Evaluation

The experiments of the systems that Pappus descends from, repeated through its released programs with default settings, on its CPU device
and on a GPU. This page and its pictures are made by one command, which takes some 19 minutes on two cores:

```sh
scripts/evaluate cpu             # all of it; --help says what else, and how it is done on a GPU
scripts/evaluate cpu matmul-hot  # one experiment again, the others as they were
```

Each experiment is a file in [`evaluation/experiments`](../evaluation/experiments): what is asked, the function and its inputs, what is swept, the
series with their devices, the floor, the axes; `kind` names a function of [`measures.py`](../evaluation/measures.py). A file more is an experiment more, and every point that was measured is in
[`evaluation/results`](../evaluation/results). What differs on a GPU is in the file's table `gpu`. Load comes from [`pappus bench`](cli.md#under-load-bench): an open loop (Poisson) whose
latencies count from the moment at which a call was *due*, unless an experiment says otherwise; an answer later than 2 s is a failure.
A figure is the median of the repetitions, with the lowest and the highest in brackets; in pictures these are the shaded area, or the thin line of a bar.

- **Bare floor**: the kernel alone as WebAssembly on the CPU device's engine, in the process that measures (`pappus-bench`): no server, no isolation, no
  clearing. A dedicated server cannot be faster. On a GPU the same is a series of its own, *dedicated*: a program of `pappus-bench bare`.
- **The ancestor's figure** was measured on a GPU, by its authors. It stands there to show what was asked, not to be compared with a processor.
- Absolute times are those of one machine. They are no promises; [SPECIFICATION.md](../SPECIFICATION.md) has those.
"""


def write(found, docs):
    """The page, of experiments and results by device."""
    pictures = docs / "pictures" / "evaluation"
    pictures.mkdir(parents=True, exist_ok=True)
    measured = {where: [one for one in every if one["name"] in results["experiments"]] for where, (every, results) in found.items()}
    every, results = found["cpu"]
    parts = [HEAD, "## Where it was measured", ""]
    parts += [machines(measured[where], results) for where, (_, results) in found.items()]
    parts += [losses(measured["cpu"], results, measured["gpu"], found["gpu"][1]), *sections(measured["cpu"], results, pictures, "", "")]
    parts += sections(measured["gpu"], found["gpu"][1], pictures, "On a GPU: ", "gpu-")
    parts += sections(measured["gpus"], found["gpus"][1], pictures, "On two GPUs: ", "gpus-")
    missing = [one["title"] for one in every if one not in measured["cpu"]]
    for where, called in (("gpu", "GPU"), ("gpus", "two GPUs")):
        missing += [f"{one['title']} ({called})" for one in found[where][0] if one not in measured[where]]
    if missing:
        parts.append(f"## Not measured\n\n{', '.join(missing)}.\n")
    (docs / "evaluation.md").write_text("\n".join(parts))


def sections(measured, results, pictures, before, file):
    """Of each experiment on one device; draws its picture."""
    for one in measured:
        found = results["experiments"][one["name"]]
        one = one | {"title": before + one["title"], "name": file + one["name"]}
        floor = floor_of(one, results)
        plots.draw(one, found["points"], floor, pictures / f"{one['name']}.svg")
        yield section(one, found, floor)


def floor_of(experiment, results):
    """The name and milliseconds of the bare floor that an experiment names, where it was measured: its kernels one by one."""
    said = experiment.get("floor")
    if not said:
        return None
    all_of_them = [results.get("floors", {}).get(figure) for figure in said["figures"]]
    return (said["name"], sum(all_of_them) / 1e6) if all(all_of_them) else None


def machines(measured, results):
    """Where it was measured: one line where all was measured in one place."""
    lines = {}
    for one in measured:
        found = results["experiments"][one["name"]]
        where = found["machine"]
        text = f"{where['processor']}, {where['cores']} cores, Linux {where['kernel']}; {where['programs']}; {where['date']}"
        lines.setdefault(text, []).append((one, found))
    out = []
    for text, group in lines.items():
        loads = [found["load_before"] for _, found in group]
        which = "" if len(lines) == 1 else ": " + ", ".join(one["name"] for one, _ in group)
        times = sorted({found["repetitions"] for _, found in group})
        several = " to ".join(map(str, dict.fromkeys([times[0], times[-1]])))
        out.append(f"- {text}{which}. Repeated: {several}; {sum(found['seconds'] for _, found in group)} s in all.")
        if max(loads) > 0.5:
            out.append(f"  Processes waited for a core before experiments began (load average up to {max(loads)} for each core, part of it from the "
                       "experiments before): where spreads are wide, other programs were measured along.")
    return "\n".join([*out, ""])


def beside(measured, results):
    """What others do better on a GPU: what has the most answers a second beside the better of Pappus's series."""
    for one in measured:
        points = results["experiments"][one["name"]]["points"]
        own = [series["name"] for series in one["series"] if "device" in series]
        others = [series["name"] for series in one["series"] if "device" not in series]
        if one["plot"]["y"] != "answers_per_s" or not others:
            continue
        told = []
        for x in plots.order(points, "x"):
            best = {}
            for kind, names in (("own", own), ("other", others)):
                found = [(found[0], name) for name in names if (found := plots.summary(points, name, x, "answers_per_s"))]
                best[kind] = max(found, default=(0, ""))
            if best["own"][0] < NOTICED * best["other"][0]:
                told.append(f"{plots.number(best['own'][0])} with {x} ({best['other'][1]}: {plots.number(best['other'][0])})")
        if told:
            yield f"- **{one['title']}, on a GPU.** Answers a second, by {one['plot']['x']}: {'; '.join(told)}."


def losses(measured, results, on_gpu, of_gpu):
    """Where Pappus does worst, in words that its own figures choose."""
    found = {one["name"]: results["experiments"][one["name"]]["points"] for one in measured}
    out = ["## Where Pappus loses", ""]

    def middle(name, series, x, figure):
        one = plots.summary(found.get(name, []), series, x, figure)
        return one and one[0]

    tenants = found.get("tenants", [])
    if tenants:
        own, shared = plots.order(tenants, "series")[:2]
        few, many = (plots.order(tenants, "x")[at] for at in (0, -1))
        one, last = middle("tenants", own, few, "p50_ms"), middle("tenants", own, many, "p50_ms")
        failed = middle("tenants", own, many, "failed_percent") or 0
        if one and last and last > TWICE * one:
            out.append(f"- **Many tenants, few processes.** With a process for each tenant, which is the default, calls of {many} tenants that come in no order need a "
                       f"fresh process nearly every time: {plots.number(last)} ms at p50 in place of {plots.number(one)} ms for one tenant, and "
                       f"{plots.number(failed)} % of calls fail. Systems whose tenants share a process have no such cost, nor "
                       "such a wall between tenants. [Shared workers](operations/sharing.md#workers-that-tenants-share) are for that.")
        if shared and (late := middle("tenants", shared, many, "p50_ms")):
            out.append(f"  With them it is {plots.number(late)} ms at p50.")
    if points := found.get("shares"):
        last = points[-1]["x"]
        figures = plots.summary(points, points[-1]["series"], last, "deviation_percent")
        out.append(f"- **Equal shares over seconds.** Of {last} equal tenants, the one that is furthest off differs by {plots.number(figures[0])} % from its share of device "
                   "time within 6 s; KNIX reports less than 0.13 % over whole jobs. Tenants take turns that last, since each change of a worker's tenant costs a process.")
    if points := found.get("doors"):
        socket, gateway = plots.order(points, "series")
        x = points[0]["x"]
        a, b = (middle("doors", series, x, "p50_ms") for series in (socket, gateway))
        if a and b:
            out.append(f"- **The gateway.** A small call takes {plots.number(b)} ms over HTTP and {plots.number(a)} ms over the socket, at {x} calls a second.")
    for one in measured:
        floor = floor_of(one, results)
        if not floor or one["plot"].get("bars") or one["kind"] == "cold":
            continue
        points = found[one["name"]]
        series, x = points[0]["series"], points[0]["x"]
        if (at := middle(one["name"], series, x, "p50_ms")) and at > floor[1]:
            out.append(f"- **{one['title']}**: a call takes {plots.number(at)} ms at p50 at the lowest load, its kernels alone {plots.number(floor[1])} ms.")
    if points := found.get("startup"):
        cold, hot = (plots.summary(points, state, state, "ms") for state in ("cold", "hot"))
        out.append(f"- **A first call.** To register vecAdd, compile it and call it takes {plots.number(cold[0])} ms, {plots.number(cold[0] / hot[0])} times a hot call; "
                   f"{plots.number(plots.summary(points, 'cold', 'cold', 'register_ms')[0])} ms of it are its registration, which compiles it.")
    out += beside(on_gpu, of_gpu)
    return "\n".join([*out, ""]) if len(out) > 2 else ""


def section(experiment, found, floor):
    points, plot = found["points"], experiment["plot"]
    out = [f"## {experiment['title']}", "", experiment["question"], ""]
    out += [f"![{experiment['title']}: {plots.UNITS[plot['y']]} by {plot['x']}](pictures/evaluation/{experiment['name']}.svg)", ""]
    columns = [(key, title) for key, title in COLUMNS if any(key in one for one in points)]
    if all(not one.get("failed_percent") for one in points):
        columns = [column for column in columns if column[0] != "failed_percent"]
    out.append("| | " + plot["x"] + " | " + " | ".join(title for _, title in columns) + " |")
    out.append("|---|" + "---|" * (len(columns) + 1))
    for series in plots.order(points, "series"):
        for x in plots.order([one for one in points if one["series"] == series], "x"):
            cells = [spread(points, series, x, key) for key, _ in columns]
            out.append(f"| {series} | {x} | " + " | ".join(cells) + " |")
    if floor:
        out.append(f"| bare floor: {floor[0]} | | {plots.number(floor[1])} |" + " |" * (len(columns) - 1))
    out.append("")
    if ancestor := experiment.get("ancestor"):
        out += [f"Asked by: {experiment['from']}. The ancestor's figure: {ancestor['figure']} ({ancestor['hardware']}).", ""]
    else:
        out += [f"Asked by: {experiment['from']}.", ""]
    codes = sorted({code for one in points for code in one.get("errors", {})})
    if codes:
        out += [f"Calls failed with {', '.join(f'`{code}`' for code in codes)} ([what these mean](errors.md#codes)).", ""]
    return "\n".join(out)


def spread(points, series, x, figure):
    """Median, and lowest and highest in brackets."""
    values = [one[figure] for one in points if one["series"] == series and one["x"] == x and figure in one]
    if not values:
        return "–"
    values.sort()
    middle = values[len(values) // 2] if len(values) % 2 else (values[len(values) // 2 - 1] + values[len(values) // 2]) / 2
    if values[0] == values[-1]:
        return plots.number(middle)
    return f"{plots.number(middle)} ({plots.number(values[0])}–{plots.number(values[-1])})"
