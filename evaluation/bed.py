"""Released programs under measurement: a supervisor with default settings, a gateway, `pappus` and what it prints."""

import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "kernels" / "configs"
FUNCTIONS = ROOT / "evaluation" / "functions"
# As `bench_models.prepare` calls it.
MODEL_INPUT = "input.bin"
# Longest wait for a program to serve.
PATIENCE_S = 60


def config(function):
    """A function of the library, or one that only experiments have."""
    own = FUNCTIONS / f"{function}.json"
    return own if own.exists() else CONFIGS / f"{function}.json"


class Failed(Exception):
    """A program did not do what it was started for."""


class Bed:
    """Where programs, inputs and folders of one run are. Everything it makes is gone at its end."""

    def __init__(self, programs, where="cpu"):
        self.programs = programs
        self.where = where
        self.folder = Path(tempfile.mkdtemp(prefix="pappus-evaluate-"))
        # State directories with what took long to register, by what it is.
        self.states = {}
        # Where random arrivals begin: another number in each repetition.
        self.seed = 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def program(self, name):
        path = self.programs / name
        if not path.exists():
            raise Failed(f"there is no {path}: scripts/evaluate builds it")
        return str(path)

    def prepared(self, what, device, config, fill):
        """A supervisor with what `fill` registers in one; that is done once, and what it wrote is copied from then on."""
        if what not in self.states:
            with Supervisor(self, device, config) as first:
                fill(first)
            self.states[what] = first.folder / "state"
        return Supervisor(self, device, config, self.states[what])

    def package(self, name):
        """A model's package, which `scripts/gpu-check models-build` made; none where that or PyTorch is missing."""
        folder = self.programs.parent / "gpu-models"
        prepare = [sys.executable, "-m", "bench_models.prepare", str(folder)]
        python = os.environ | {"PYTHONPATH": f"{ROOT / 'python' / 'src'}:{ROOT / 'python'}"}
        if not (folder / name).is_dir():
            return None
        if not (folder / name / MODEL_INPUT).exists() and subprocess.run(prepare, env=python).returncode != 0:
            return None
        return folder / name

    def inputs_of(self, package):
        """The one input of a model."""
        (name,) = json.loads((package / "function.json").read_text())["blueprint"]["inputs"]
        return [f"{name}={package / MODEL_INPUT}"]

    def input(self, said):
        """The value of `--input` of what an experiment says: numbers as they are, or an array that is made here."""
        if "=" in said:
            return said
        name, kind, *sizes = said.split()
        sizes = [int(size) for size in sizes]
        path = self.folder / ("-".join([name, kind, *map(str, sizes)]) + ".bin")
        if not path.exists():
            path.write_bytes(MADE[kind](*sizes))
        return f"{name}={path}"


def square_of_whole_numbers(n):
    """As the thesis has it: n, then n² values of 64 bits."""
    return struct.pack(f"<{n * n + 1}q", n, *(at % 1000 for at in range(n * n)))


def picture(rows, columns):
    """Rows and columns, then 0, 1, 2, …: the thesis's golden input."""
    return struct.pack(f"<{rows * columns + 2}f", rows, columns, *(float(at % 65536) for at in range(rows * columns)))


def pictures(count, rows, columns):
    """One pair of rows and columns, then all pictures behind each other."""
    one = picture(rows, columns)
    return one[:8] + count * one[8:]


def floats(n, first=0):
    return struct.pack(f"<{n}f", *(float((first + at) % 1000) for at in range(n)))


def system(n, first=0):
    """A matrix for Jacobi's method: on its diagonal more than the rest of a row together."""
    return struct.pack(f"<{n * n}f", *(n if at % (n + 1) == 0 else (first + at) % 1000 / 2000 for at in range(n * n)))


MADE = {"square": square_of_whole_numbers, "picture": picture, "pictures": pictures, "floats": floats, "system": system}


class Supervisor:
    """A running supervisor. Its state stays in its folder over `restart`."""

    def __init__(self, bed, device, config="", state=None):
        self.bed = bed
        self.device = device
        self.folder = Path(tempfile.mkdtemp(dir=bed.folder))
        self.socket = self.folder / "s"
        self.config = self.folder / "pappus.toml"
        self.config.write_text(config)
        self.child = None
        if state:
            shutil.copytree(state, self.folder / "state")
        self.start()

    def start(self):
        command = [self.bed.program("pappus-supervisor"), "--socket", self.socket, "--state-dir", self.folder / "state"]
        command += ["--config", self.config, "--device", self.device]
        if self.bed.where == "gpus":
            command += ["--device", self.device.replace("cuda:0", "cuda:1")]
        self.log = open(self.folder / "log", "ab")
        self.child = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.pappus("--patience", f"{PATIENCE_S}s", "status")

    def stop(self):
        if self.child:
            self.child.send_signal(signal.SIGTERM)
            if self.child.wait(PATIENCE_S) != 0:
                raise Failed(f"the supervisor ended badly: {(self.folder / 'log').read_text()[-2000:]}")
            self.child = None
            self.log.close()

    def restart(self):
        self.stop()
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if any(error) and self.child:
            self.child.kill()
            self.child.wait()
            return
        self.stop()

    def run(self, *arguments):
        """`pappus` with these arguments; its answer may be an error."""
        command = [self.bed.program("pappus"), "--socket", self.socket, *arguments]
        return subprocess.run([str(part) for part in command], capture_output=True, text=True)

    def pappus(self, *arguments):
        ran = self.run(*arguments)
        if ran.returncode != 0:
            raise Failed(f"pappus {' '.join(map(str, arguments))[:200]}: {ran.stderr[-500:]}")
        return ran.stdout

    def admin(self, *arguments):
        command = [self.bed.program("pappus"), "--socket", f"{self.socket}.admin", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def add(self, name, config, *arguments):
        self.pappus("function", "add", name, config, *arguments)

    def bench(self, functions, inputs, *arguments):
        """The result of `pappus bench`. That no call was answered is a result, too."""
        given = [part for said in inputs for part in ("-i", self.bed.input(said))]
        ran = self.run("bench", *functions, *given, "--json", "--seed", str(self.bed.seed), *arguments)
        if not ran.stdout:
            raise Failed(f"pappus bench {' '.join(functions)[:80]}: {ran.stderr[-500:]}")
        return json.loads(ran.stdout)


class Gateway:
    """A gateway in front of a supervisor, on an address of its own."""

    def __init__(self, supervisor):
        command = [supervisor.bed.program("pappus-gateway"), "--socket", supervisor.socket, "--own-tenant"]
        command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
        environment = os.environ | {"NO_COLOR": "1"}
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.http = next((line.split("serving HTTP on ")[1].strip() for line in self.child.stderr if "serving HTTP on " in line), None)
        if self.http is None:
            raise Failed("the gateway ended")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.child.stderr.close()


def tenants_of(names, settings=None):
    """A configuration with tenants by token and with their settings, and the lines of `--tenants` for them."""
    lines, sections = [], [f"gateways = [{os.geteuid()}]"]
    for name in names:
        token = f"the-token-of-{name}"
        sections.append(f'[tenants.{name}]\ntoken-sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n{(settings or {}).get(name, "")}')
        lines.append(f"{name} - {token}")
    return "\n".join(sections) + "\n", lines


def machine(programs, where):
    """Where it runs: processor, cores, GPUs, kernel, and the commit of the programs."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":")[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), "unknown")
    version = subprocess.run([str(programs / "pappus"), "version"], capture_output=True, text=True, check=True).stdout
    if where != "cpu":
        used = ["-i", "0"] if where == "gpu" else []
        named = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", *used], capture_output=True, text=True)
        found = named.stdout.split("\n")[:-1]
        model = f"{len(found)} × {found[0]}, {model}" if found else model
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": os.uname().release,
        "programs": version.strip(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def load():
    """How busy the machine is with other things: its load average of one minute for each core."""
    return os.getloadavg()[0] / len(os.sched_getaffinity(0))
