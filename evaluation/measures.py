"""What can be measured: a function for each `kind` of an experiment. Each returns points of one repetition: a series, an x and
figures by name. Latencies are in milliseconds and counted from when a call was due."""

import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bed import ROOT, Failed, Gateway, Supervisor, config, tenants_of

TIMES = ["--duration", "1s", "--warm-up", "200ms"]
# Processes that keep calls in flight beside each other.
GENERATORS = 8


def figures(tally):
    """The figures of `pappus bench` that experiments show."""
    latency = tally["latency_ns"]
    return {
        "p50_ms": latency["p50"] / 1e6,
        "p99_ms": latency["p99"] / 1e6,
        "answers_per_s": tally["per_second"],
        "failed_percent": 100 * tally["failed_share"],
    }


def point(series, x, result):
    all_of_them = result["runs"][0]["all"]
    found = {"series": series, "x": x, **figures(all_of_them)}
    return {**found, "errors": all_of_them["errors"]} if all_of_them["errors"] else found


def repetition(experiment, bed, nth, say):
    """All points of one repetition. A supervisor serves one series of it, so that no two share a process."""
    measure = KINDS[experiment["kind"]]
    bed.seed = nth + 1
    points = []
    for series in experiment["series"]:
        say(f"{experiment['name']}: repetition {nth + 1}, {series['name']}")
        points += [{"repetition": nth, **one} for one in measure(experiment, series, bed)]
    return points


def config_of(experiment, series):
    return config(series.get("function", experiment.get("function")))


def inputs_of(experiment, series, value):
    """Inputs in which `{x}` stands for the swept value."""
    return [said.replace("{x}", str(value)) for said in series.get("inputs", experiment.get("inputs", []))]


def rates(experiment, series, bed):
    """Latencies at each rate, or at one rate for each value of an input; over the socket or through a gateway."""
    with Supervisor(bed, series["device"]) as supervisor:
        supervisor.add("f", config_of(experiment, series))
        through = Gateway(supervisor) if series.get("over") == "gateway" else None
        try:
            over = ["--gateway", f"http://{through.http}"] if through else []
            times = ["--duration", experiment.get("duration", "1s"), "--warm-up", "200ms"]
            for x in series.get("values", experiment["values"]):
                rate = experiment.get("rate", x)
                inputs = inputs_of(experiment, series, x)
                yield point(series["name"], x, supervisor.bench(["f"], inputs, "--rate", str(rate), *over, *times))
        finally:
            if through:
                through.__exit__()


def highest(experiment, series, bed):
    """The highest rate that holds, of calls or of what each of them has several of."""
    with Supervisor(bed, series["device"]) as supervisor:
        supervisor.add("f", config_of(experiment, series))
        limits = ["--rate", str(series.get("first_rate", experiment.get("first_rate"))), "--sweep", "--step", "2", "--max-p99", experiment["max_p99"]]
        result = supervisor.bench(["f"], inputs_of(experiment, series, series["x"]), *limits, *TIMES)
        members = series.get("members", 1)
        yield {"series": series["name"], "x": series["x"], "highest_per_s": members * (result["highest_rate"] or 0)}


def cold(experiment, series, bed):
    """Every call is the first of its function since the supervisor started; or each function was called before."""
    count = experiment["functions"]
    names = [f"f{nth}" for nth in range(count)]

    def fill(supervisor):
        for path in different_modules(config_of(experiment, series), count, bed.folder / "cold"):
            supervisor.add(path.stem, path)

    with bed.prepared("cold", series["device"], "", fill) as supervisor:
        for x in experiment["values"]:
            load = ["--rate", str(x), "--arrivals", "uniform", "--duration", f"{1000 * count // x}ms", "--warm-up", "0s"]
            inputs = inputs_of(experiment, series, x)
            if series["state"] == "hot":
                supervisor.bench(names, inputs, *load)
            yield point(series["name"], x, supervisor.bench(names, inputs, *load))
            supervisor.restart()


def different_modules(config, count, folder):
    """Functions that differ in nothing but a section of their module which nobody reads: no code is shared."""
    module = (config.parent / "../built/mlops.wasm").resolve().read_bytes()
    text = config.read_text()
    folder.mkdir(exist_ok=True)
    for nth in range(count):
        name = b"\x04pass" + nth.to_bytes(4, "little")
        (folder / f"m{nth}.wasm").write_bytes(module + b"\x00" + bytes([len(name)]) + name)
        path = folder / f"f{nth}.json"
        path.write_text(text.replace("../built/mlops.wasm", f"m{nth}.wasm"))
        yield path


def startup(experiment, series, bed):
    """A call in each state: nothing is there yet, the function is registered, or it has run before."""
    with Supervisor(bed, series["device"]) as supervisor:
        config = config_of(experiment, series)
        weights = [part for said in experiment.get("weights", []) for part in ("--weight", bed.input(said))]
        call = ["invoke", "f"]
        for said in experiment["inputs"]:
            call += ["-i", bed.input(said)]

        def milliseconds(*more):
            return json.loads(supervisor.pappus(*call, "--json", *more))["latency"]["round_trip_ns"]["p50"] / 1e6

        began = time.monotonic()
        supervisor.add("f", config, *weights)
        added = 1000 * (time.monotonic() - began)
        yield {"series": "cold", "x": "cold", "ms": added + milliseconds(), "register_ms": added}
        supervisor.restart()
        yield {"series": "warm", "x": "warm", "ms": milliseconds()}
        yield {"series": "hot", "x": "hot", "ms": milliseconds("--repeat", "200")}


def switching(experiment, series, bed):
    """One client calls several functions by turns, in one worker."""
    with Supervisor(bed, series["device"]) as supervisor:
        names = [f"f{nth}" for nth in range(series["functions"])]
        weights = [part for said in experiment.get("weights", []) for part in ("--weight", bed.input(said))]
        for name in names:
            supervisor.add(name, config_of(experiment, series), *weights)
        result = supervisor.bench(names, inputs_of(experiment, series, ""), "--clients", "1", *TIMES)
        yield point(series["name"], series.get("x", series["functions"]), result)


def owned(supervisor, owner, lines, function, config, others, *arguments):
    """Registers a function as one tenant, and grants it to others; the lines of those who call it, in a file."""
    token = supervisor.folder / "token"
    token.write_text({line.split()[0]: line.split()[2] for line in lines}[owner])
    supervisor.pappus("--token-file", token, "function", "add", function, config, *arguments)
    for other in others:
        supervisor.pappus("--token-file", token, "function", "grant", function, other)
    file = supervisor.folder / "tenants.txt"
    file.write_text("\n".join(line for line in lines if line.split()[0] in set(others)) + "\n")
    return file


def workflow(experiment, series, bed):
    """Sums of which each takes the one before: as a composition's steps, or in a client's calls, one after the other."""
    settings, lines = tenants_of(["caller", "other"])
    with Supervisor(bed, series["device"], settings) as supervisor:
        owned(supervisor, "other", lines, "f", config_of(experiment, series), ["caller"])
        owned(supervisor, "caller", lines, "f", config_of(experiment, series), [])
        file = supervisor.folder / "caller.txt"
        file.write_text(lines[0] + "\n")
        for x in experiment["values"]:
            name, calls = "f", x
            if step := series.get("step"):
                name, calls = f"chain{x}", 1
                path = supervisor.folder / f"{name}.json"
                path.write_text(json.dumps(chain(step, x)))
                supervisor.pappus("--token-file", supervisor.folder / "token", "function", "add", name, path)
            result = supervisor.bench([name], inputs_of(experiment, series, x), "--clients", "1", "--tenants", file, *TIMES)
            one = point(series["name"], x, result)
            if calls > 1:
                # Of the slowest in a hundred chains nothing is known where calls are measured one by one.
                del one["p99_ms"]
                one |= {"p50_ms": calls * one["p50_ms"], "answers_per_s": one["answers_per_s"] / calls}
            yield one


def chain(function, length):
    """A composition of so many sums."""
    steps = [{"name": f"s{nth}", "function": function, "inputs": {"A": {"step": f"s{nth - 1}"} if nth else "A", "B": "B"}} for nth in range(length)]
    return {"inputs": ["A", "B"], "steps": steps, "outputs": {"C": {"step": steps[-1]["name"]}}}


def shares(experiment, series, bed):
    """Tenants that ask for all they can get: by how much their answers differ from equal ones."""
    count = series["tenants"]
    names = [f"t{nth}" for nth in range(count)]
    settings, lines = tenants_of(["owner", *names])
    with Supervisor(bed, series["device"], settings) as supervisor:
        file = owned(supervisor, "owner", lines, "f", config_of(experiment, series), names)
        inputs = inputs_of(experiment, series, "")
        arguments = ["--clients", "2", "--tenants", file]

        def device_ns():
            told = json.loads(supervisor.admin("tenants", "--json"))["tenants"]
            return {one["name"]: one["device_ns"] for one in told if one["name"] in names}

        # Until every tenant has its process: a GPU makes one or two a second.
        supervisor.bench(["owner/f"], inputs, *arguments, "--duration", experiment.get("settles", "500ms"), "--warm-up", "0s")
        before = device_ns()
        run = supervisor.bench(["owner/f"], inputs, *arguments, "--duration", "6s", "--warm-up", "500ms")["runs"][0]
        device = furthest([now - before.get(name, 0) for name, now in device_ns().items()])
        answers = furthest([tenant["per_second"] for tenant in run["tenants"].values()])
        found = {"deviation_percent": device, "answers_deviation_percent": answers}
        yield {"series": series["name"], "x": count, **found, **figures(run["all"])}


def furthest(values):
    """By how many hundredths of an equal share the one that is furthest off differs from it."""
    mean = sum(values) / len(values)
    return 100 * max(abs(one - mean) for one in values) / mean


def tenants(experiment, series, bed):
    """The same calls a second, from one tenant or from many."""
    every = [f"t{nth}" for nth in range(max(experiment["values"]))]
    settings, lines = tenants_of(["owner", *every])

    def fill(supervisor):
        owned(supervisor, "owner", lines, "f", config_of(experiment, series), every)

    for count in series.get("values", experiment["values"]):
        with bed.prepared("tenants", series["device"], settings, fill) as supervisor:
            file = supervisor.folder / "tenants.txt"
            file.write_text("\n".join(lines[1 : count + 1]) + "\n")
            rate = experiment["rate"] / count
            arguments = ["--rate", str(rate), "--tenants", file, "--duration", "2s", "--warm-up", "1500ms"]
            result = supervisor.bench(["owner/f"], inputs_of(experiment, series, ""), *arguments)
            yield point(series["name"], count, result)


def closed(experiment, series, bed):
    """Answers a second with so many calls in flight: through Pappus, or of a dedicated program, which has the GPU to itself, its
    kernels compiled and its memory pinned, and neither isolates nor clears."""
    if bare := series.get("bare"):
        values = series.get("values", experiment["values"])
        lanes = ",".join(str(x) for x in values)
        command = [bed.program("pappus-bench"), "bare", *bare, "--lanes", lanes, "--measured-ms", "1000"]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode != 0:
            raise Failed(f"pappus-bench bare: {ran.stderr[-500:]}")
        for x, rate in zip(values, json.loads(ran.stdout)):
            latencies = {"p50_ms": rate["p50_ns"] / 1e6, "p99_ms": rate["p99_ns"] / 1e6}
            yield {"series": series["name"], "x": x, "answers_per_s": rate["per_second"], **latencies}
        return
    with Supervisor(bed, series["device"]) as supervisor:
        supervisor.add("f", config_of(experiment, series))
        for x in experiment["values"]:
            # One generator is a thread, which some ten thousand calls a second keep busy.
            shares = [len(range(nth, x, GENERATORS)) for nth in range(min(x, GENERATORS))]
            inputs = inputs_of(experiment, series, x)
            yield at_once(series, x, lambda clients: supervisor.bench(["f"], inputs, "--clients", str(clients), *TIMES), shares)


def at_once(series, x, bench, loads):
    """What several generators find that run at the same time, as one point: `bench` of each of the loads."""
    with ThreadPoolExecutor(GENERATORS) as together:
        found = [point(series["name"], x, result) for result in together.map(bench, loads)]
    return {
        **found[0],
        "answers_per_s": sum(one["answers_per_s"] for one in found),
        "p50_ms": statistics.median(one["p50_ms"] for one in found),
        "p99_ms": max(one["p99_ms"] for one in found),
    }


def beside_torch(series, what, *arguments):
    """What `beside_torch.py` finds, in place of Pappus; none where there is no PyTorch."""
    command = [sys.executable, str(ROOT / "evaluation" / "beside_torch.py"), what, *series["torch"], *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if ran.returncode != 0 and "No module named 'torch'" in ran.stderr:
        return None
    if ran.returncode != 0:
        raise Failed(f"beside_torch.py: {ran.stderr[-500:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def contention(experiment, series, bed):
    """Tenants with a function and weights of their own and one call in flight each: what is answered together."""
    package = bed.package(experiment["package"]) if "package" in experiment else None
    if "package" in experiment and not package:
        return
    if "torch" in series:
        what = package.name if package else experiment["function"]
        found = beside_torch(series, "contention", "--tenants", ",".join(str(x) for x in experiment["values"]), "--of", what)
        yield from ({"series": series["name"], **one} for one in found or [])
        return
    names = [f"t{nth}" for nth in range(max(experiment["values"]))]
    settings, lines = tenants_of(names)
    with Supervisor(bed, series["device"], settings) as supervisor:
        for nth, name in enumerate(names):
            # Equal weights would be kept once.
            weights = [bed.input(f"{weight} {nth}") for weight in experiment.get("weights", [])]
            config = package or config_of(experiment, series)
            owned(supervisor, name, lines, "f", config, [], *(part for said in weights for part in ("--weight", said)))
        for x in experiment["values"]:
            files = []
            for nth in range(min(x, GENERATORS)):
                files.append(supervisor.folder / f"generator{nth}.txt")
                files[-1].write_text("\n".join(lines[nth:x:GENERATORS]) + "\n")
            inputs = bed.inputs_of(package) if package else inputs_of(experiment, series, x)
            yield at_once(series, x, lambda file: supervisor.bench(["f"], inputs, "--clients", "1", "--tenants", file, *TIMES), files)


def elastic(experiment, series, bed):
    """Two tenants, of which one weighs nine times as much: one at a time, then both."""
    names = {"light": ("the tenant of 0.1", 1), "heavy": ("the tenant of 0.9", 9)}
    settings, lines = tenants_of(["owner", *names], {name: f"weight = {weight}" for name, (_, weight) in names.items()})
    with Supervisor(bed, series["device"], settings) as supervisor:
        file = owned(supervisor, "owner", lines, "f", config_of(experiment, series), list(names))
        for asking in (["light"], ["heavy"], list(names)):
            file.write_text("\n".join(line for line in lines if line.split()[0] in asking) + "\n")
            arguments = ["--clients", "16", "--tenants", file, "--duration", "3s", "--warm-up", "1s"]
            run = supervisor.bench(["owner/f"], inputs_of(experiment, series, ""), *arguments)["runs"][0]
            x = "one of them" if len(asking) == 1 else "both"
            for name in asking:
                yield {"series": names[name][0], "x": x, **figures(run["tenants"][name] if len(asking) > 1 else run["all"])}


def neighbours(experiment, series, bed):
    """An honest tenant at a rate, alone or beside one whose kernels fault."""
    if "torch" in series:
        beside = ["--beside"] if series["beside"] else []
        if found := beside_torch(series, "crash", "--rate", str(experiment["honest"]["rate"]), *beside):
            yield {"series": series["name"], "x": series["name"], **{name: value for name, value in found.items() if value is not None}}
        return
    settings, lines = tenants_of(["honest", "crashing"])
    with Supervisor(bed, series["device"], settings) as supervisor:
        files = {}
        for line in lines:
            name = line.split()[0]
            file = owned(supervisor, name, lines, "f", config(experiment[name]["function"]), [])
            file.write_text(line + "\n")
            files[name] = file.rename(supervisor.folder / f"{name}.txt")
        beside = None
        if series["beside"]:
            mean = experiment["crashing"]
            given = [part for said in mean["inputs"] for part in ("-i", bed.input(said))]
            command = [bed.program("pappus"), "--socket", supervisor.socket, "bench", "f", *given, "--json", "--warm-up", "0s"]
            command += ["--rate", str(mean["rate"]), "--duration", "5s", "--tenants", files["crashing"]]
            beside = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        honest = experiment["honest"]
        arguments = ["--rate", str(honest["rate"]), "--tenants", files["honest"], "--duration", "3s", "--warm-up", "1s"]
        result = point(series["name"], series["name"], supervisor.bench(["f"], honest["inputs"], *arguments))
        if beside:
            out, why = beside.communicate()
            errors = json.loads(out)["runs"][0]["all"]["errors"] if out else {}
            if not errors.get("KERNEL_FAULT"):
                raise Failed(f"the neighbour did not fault: {errors} {why[-300:]}")
            result |= {"faults": errors.pop("KERNEL_FAULT"), "refused": sum(errors.values())}
        yield result


KINDS = {
    "rates": rates,
    "closed": closed,
    "highest": highest,
    "cold": cold,
    "startup": startup,
    "switching": switching,
    "shares": shares,
    "tenants": tenants,
    "neighbours": neighbours,
    "contention": contention,
    "elastic": elastic,
    "workflow": workflow,
}
