#!/usr/bin/env python3
"""Runs random fenced kernels on a GPU beside memory that they must neither read nor change.

`wild` (fence/examples/wild.rs) makes kernels that reach for every address. Here they run in a window of 4 GiB of which every address
is mapped, between two windows of others: the witnesses, all of whose bytes are a secret. Behind each kernel the witnesses
are compared, and the kernel says how often it read the secret. An address that is mapped nowhere ends the context, which counts as
an escape, too. Positive control: some kernels run without their fence as well, and have to be caught at both.

Exit codes: 0 no escape and every control caught; 1 an escape, or a control that nothing was seen of; 3 no GPU.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from ctypes import c_uint, c_uint64
from pathlib import Path

from cuda import Device, Failed

WINDOW = 4 << 30
# Physical memory of a window, mapped again and again until all of its addresses lead there.
OWN, WITNESS = 1 << 30, 64 << 20
BLOCKS, THREADS = 2048, 256

# Counts the words of a range that are not the secret.
SCAN = """.version 8.1
.target sm_90
.address_size 64
.visible .entry scan(.param .u64 from, .param .u64 words, .param .u32 secret, .param .u64 result)
{
.reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p<3>;
ld.param.u64 %rd1, [from]; ld.param.u64 %rd2, [words]; ld.param.u32 %r5, [secret]; ld.param.u64 %rd4, [result];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;
mov.u32 %r6, %nctaid.x; mul.lo.u32 %r6, %r6, %r2; cvt.u64.u32 %rd5, %r4; cvt.u64.u32 %rd6, %r6;
next: setp.ge.u64 %p1, %rd5, %rd2;
@%p1 bra end;
shl.b64 %rd7, %rd5, 2; add.u64 %rd7, %rd7, %rd1; ld.volatile.global.u32 %r7, [%rd7];
setp.ne.u32 %p2, %r7, %r5;
@%p2 red.global.add.u32 [%rd4], 1;
add.u64 %rd5, %rd5, %rd6;
bra next;
end: ret;
}
"""


class Field:
    """Three windows side by side: a witness, the kernels' own, a witness; both witnesses are the same memory."""

    def __init__(self, device: Device, secret: int, table: int, counters: list[int]):
        self.device, self.table, self.counters = device, table, counters
        self.secret = int.from_bytes(bytes([secret]) * 4, "little")
        base = device.reserve(20 << 30, WINDOW)
        self.witnesses = (base, base + 16 * (1 << 30))
        self.own = base + 8 * (1 << 30)
        memory, witness = device.memory(OWN), device.memory(WITNESS)
        device.fill_with(self.own, WINDOW, memory, OWN)
        for at in self.witnesses:
            device.fill_with(at, WINDOW, witness, WITNESS)
        scratch = device.memory(2 << 20)
        self.result = device.reserve(2 << 20, 2 << 20)
        device.fill_with(self.result, 2 << 20, scratch, 2 << 20)
        self.scan = device.load(SCAN)
        # Wild addresses that a kernel loads from memory: half of them the witnesses'.
        step = WINDOW // 512
        bases = (self.witnesses[0], self.own, self.witnesses[1], 0x7F00_0000_0000)
        addresses = [bases[i % 4] + i * step + i * 16 for i in range(512)]
        self.addresses = b"".join(a.to_bytes(8, "little") for a in addresses)
        self.refill()

    def refill(self):
        """The secret is whole."""
        self.device.set(self.witnesses[0], self.secret, WITNESS // 4)

    def changed(self) -> int:
        """Words of the witnesses that are not the secret any more."""
        self.device.set(self.result, 0, 1)
        self.device.run(
            self.scan, "scan", 1024, 256,
            c_uint64(self.witnesses[0]), c_uint64(WITNESS // 4), c_uint(self.secret), c_uint64(self.result),
        )  # fmt: skip
        return int.from_bytes(self.device.read(self.result, 4), "little")

    def run(self, text: str, seed: int, witness: int, fenced: bool) -> tuple[int, int]:
        """Runs a kernel: words that it changed of the witnesses, and how often it read the secret."""
        device = self.device
        device.set(self.own, 0, OWN // 4)
        device.write(self.own + self.table, self.addresses)
        module = device.load(text)
        last = [c_uint(self.own >> 32)] if fenced else []
        values = [c_uint64(self.own), c_uint64(self.witnesses[witness]), c_uint64(seed), *last]
        device.run(module, "wild", BLOCKS, THREADS, *values)
        counts = [int.from_bytes(device.read(self.own + at, 4), "little") for at in self.counters]
        device.unload(module)
        # A wild store may hit one counter, not all.
        return self.changed(), min(counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wild", default="target/gpu/wild", help="the program that makes kernels (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="how long kernels run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the first kernel's (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="results go here, too")
    arguments = parser.parse_args()
    try:
        device = Device()
    except (OSError, Failed) as why:
        print(f"no GPU here: {why}", file=sys.stderr)
        return 3
    print(f"{device.name()}: wild kernels for {arguments.seconds:.0f} s from seed {arguments.seed}", flush=True)
    total = {"kernels": 0, "accesses": 0, "changed": 0, "read": 0, "lost": 0}
    control = {"kernels": 0, "changed": 0, "read": 0}
    seed, field, begin = arguments.seed, None, time.monotonic()
    while time.monotonic() - begin < arguments.seconds and not total["lost"]:
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run(
                [arguments.wild, str(seed), "64", folder], check=True, capture_output=True, text=True
            ).stdout.splitlines()
            if field is None:
                secret, table, counters = made[-1].split(maxsplit=2)
                field = Field(device, int(secret), int(table, 0), json.loads(counters))
            for line in made[:-1]:
                number, accesses, mapped = (int(word) for word in line.split())
                text = Path(folder, f"{number}.fenced.ptx").read_text()
                try:
                    changed, read = field.run(text, number, number % 2, True)
                except Failed as why:
                    print(f"seed {number}: {why}", file=sys.stderr)
                    total["lost"] += 1
                    break
                total["kernels"] += 1
                total["accesses"] += accesses * BLOCKS * THREADS
                total["changed"] += changed
                total["read"] += read
                if changed or read:
                    print(f"seed {number}: {changed} words changed, the secret read {read} times", file=sys.stderr)
                    field.refill()
                if mapped:
                    plain = Path(folder, f"{number}.ptx").read_text()
                    changed, read = field.run(plain, number, number % 2, False)
                    control["kernels"] += 1
                    control["changed"] += changed
                    control["read"] += read
                    field.refill()
        seed += 64
    seconds = time.monotonic() - begin
    rate = total["accesses"] / seconds * 60
    print(
        f"fenced: {total['kernels']} kernels, {total['accesses']:.2e} accesses ({rate:.1e} a minute): {total['changed']} words of "
        f"others changed, the secret read {total['read']} times, {total['lost']} contexts lost"
    )
    print(
        f"control, without the fence: {control['kernels']} kernels: {control['changed']} words changed, the secret read "
        f"{control['read']} times"
    )
    if arguments.json:
        result = {"device": device.name(), "seed": arguments.seed, "seconds": seconds, "fenced": total, "control": control}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    escaped = total["changed"] or total["read"] or total["lost"]
    caught = control["changed"] and control["read"]
    return 0 if total["kernels"] and caught and not escaped else 1


if __name__ == "__main__":
    sys.exit(main())
