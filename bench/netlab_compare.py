#!/usr/bin/env python3
"""Measures plans on a real network with slow and fast links, beside what was predicted.

For each cluster of examples/netlab the lab is made (tools/netlab: root), and a Llama-shaped model is
planned four ways: for the network as it is; as if all links were as fast as those within a pair;
with the degrees of the first in Megatron's default rank order by host name; and data parallel alone.
All are run in turn, several rounds, and medians, ratios and predictions printed as a table.

  bench/netlab_compare.py --binary build/release/bin/meshwright [--rounds 3] [--only two_pairs]
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMON = ["--heads", "8", "--kv-heads", "4", "--gated", "--untied", "--precision", "f32",
          "--attention", "unfused", "--engine", "meshwright", "--no-recompute", "--force"]
# Sizes at which a step takes a second or so: large enough that the network decides.
CASES = {
    "two_pairs": ["--layers", "2", "--hidden", "256", "--vocab", "4096", "-b", "4", "-s", "256"],
    "four_pairs": ["--layers", "4", "--hidden", "256", "--vocab", "4096", "-b", "8", "-s", "256"],
    "unequal_pairs": ["--layers", "3", "--hidden", "128", "--vocab", "16384", "-b", "4", "-s", "256"],
}


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def uniform(cluster, path):
    """The same hosts without what lies between the pairs."""
    text = cluster.read_text()
    path.write_text(text[:text.index("levels:")] + "levels:\n  - {level: spine}\n")
    return path


def describe(degrees):
    names = [f"{k}{degrees[k]}" for k in ("pp", "vpp", "dp", "cp", "tp") if degrees[k] > 1]
    zero = [] if degrees["zero"] == "none" else [degrees["zero"]]
    return " ".join(names + [f"mbs{degrees['micro_batch']}"] + zero)


def pins(degrees):
    flags = []
    for name in ("pp", "vpp", "dp", "cp", "tp"):
        flags += [f"--{name}", str(degrees[name])]
    flags += ["--micro-batch", str(degrees["micro_batch"]), "--zero", degrees["zero"]]
    return flags if degrees["sp"] or degrees["tp"] == 1 else flags + ["--no-sp"]


class Bench:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder

    def plan(self, name, cluster, sizes, extra=()):
        path = self.folder / f"{name}.json"
        run([self.binary, "plan", *sizes, str(cluster), *COMMON, "-o", str(path), *extra])
        return path, json.loads(path.read_text())

    def measure(self, path, steps, order):
        output = run([ROOT / "tools/netlab", "run", "--order", order, "--", self.binary, "run",
                      str(path), "--ranks", "env", "--steps", str(steps)])
        seconds = []
        for value, unit in re.findall(r"step \d+/\d+ .*?  ([0-9.]+) (s|ms|us)  ", output):
            seconds.append(float(value) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit])
        return seconds[1:]

    def case(self, name, rounds, steps):
        cluster = ROOT / "examples/netlab" / f"{name}.yaml"
        sizes = CASES[name]
        aware, a = self.plan("aware", cluster, sizes)
        _, u = self.plan("uniform", uniform(cluster, self.folder / "uniform.yaml"), sizes)
        # The same decisions, priced on the network as it is.
        blind, b = self.plan("blind", cluster, sizes, pins(u["degrees"]))
        world = sum(1 for line in cluster.read_text().splitlines() if "{name: node" in line)
        data, d = self.plan("data", cluster, sizes, ["--dp", str(world)])
        rows = [["aware", aware, a, "devices"], ["as if uniform", blind, b, "devices"],
                ["as if uniform, ranks by host name", blind, b, "names"],
                ["aware's degrees, ranks by host name", aware, a, "names"],
                ["data parallel", data, d, "devices"]]
        run([ROOT / "tools/netlab", "up", str(cluster), "--meshwright", self.binary])
        try:
            times = [[] for _ in rows]
            for _ in range(rounds):
                for i, (_, path, _, order) in enumerate(rows):
                    times[i] += self.measure(path, steps, order)
        finally:
            run([ROOT / "tools/netlab", "down"])
        best = statistics.median(times[0])
        print(f"\n{name}: {' '.join(sizes)}")
        for (what, _, p, order), t in zip(rows, times):
            median = statistics.median(t)
            said = p["predicted"]["step_seconds"] if order == "devices" else None
            text = f"{said:.3f} s ({100 * (said / median - 1):+.0f} %)" if said else "-"
            print(f"  {what:36} {describe(p['degrees']):24} {median:7.3f} s  "
                  f"[{min(t):.3f}..{max(t):.3f}] x{len(t)}  ratio {median / best:5.2f}  "
                  f"predicted {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="per run; the first is left out")
    parser.add_argument("--only", choices=sorted(CASES))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments.binary.resolve(), pathlib.Path(folder))
        for name in [arguments.only] if arguments.only else CASES:
            bench.case(name, arguments.rounds, arguments.steps)


if __name__ == "__main__":
    main()
