"""Profiles a tiny plan with real ranks, goes on where it stopped, and plans by the table."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

CLUSTER = """
name: pair
kinds:
  - {name: core, vendor: cpu, architecture: cpu, memory: 2 GiB, memory_bandwidth: 5 GB/s,
     fp32: 40 GFLOP/s, fp64: 20 GFLOP/s, link: shm, device_link: 5 GB/s}
hosts:
  - {name: here, devices: {kind: core, count: 2}, nics: {gbps: 1, latency: 2 us}, ram: 4 GiB}
levels:
  - {level: spine}
"""
MODEL = ["--layers", "2", "--hidden", "64", "--heads", "4", "--vocab", "256", "--gated", "-s", "32",
         "-b", "4", "--precision", "f32", "--engine", "meshwright", "--micro-batch", "1", "--zero",
         "none", "--no-recompute", "--no-sp"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    binary = os.path.abspath(parser.parse_args().binary)
    if not os.path.exists(os.path.join(os.path.dirname(binary), "meshwright-rank")):
        print("skipped: meshwright-rank was not built, since libtorch was not found")
        return 77

    def run(*arguments, code=0):
        done = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        with open("pair.yaml", "w") as f:
            f.write(CLUSTER)
        plans = []
        for name, pins in (("dp", ["--dp", "2"]), ("tp", ["--tp", "2"]), ("pp", ["--pp", "2"])):
            plans.append(name + ".json")
            run("plan", *MODEL, "pair.yaml", *pins, "-o", plans[-1])

        # Operators alone, then no more than is there already.
        text = run("profile", plans[0], "-o", "t.json", "--ranks", "none", "--repeat", "3")
        table = json.load(open("t.json"))
        assert table["kernels"] and all(k["seconds"] > 0 for k in table["kernels"]), text
        assert [c["signature"] for c in table["curves"]] == ["optimizer adamw"], table["curves"]
        before = {k["signature"]: k["seconds"] for k in table["kernels"]}
        assert "\n0 measured" in "\n" + run("profile", plans[0], "-o", "t.json", "--ranks", "none")

        # A budget that is over at once leaves a table to go on from.
        run("profile", *plans, "-o", "t.json", "--repeat", "3", "--budget", "1e-9")
        run("profile", *plans, "-o", "t.json", "--repeat", "3")
        table = json.load(open("t.json"))
        kept = {k["signature"]: k["seconds"] for k in table["kernels"]}
        assert all(kept[s] == t for s, t in before.items())
        names = " ".join(c["signature"] for c in table["curves"])
        assert "all_reduce of 2" in names and "send of 2" in names, names

        # All that the plans do was measured, and a step takes what the table says.
        for name, pins in (("dp", ["--dp", "2"]), ("tp", ["--tp", "2"]), ("pp", ["--pp", "2"])):
            text = run("plan", *MODEL, "pair.yaml", *pins, "--profile", "t.json", "-o", "by.json",
                       "--force")
            line = next(l for l in text.splitlines() if "profiled:" in l)
            words = line.split("profiled: ")[1].split()
            assert words[0] == words[2], (name, line)
            plan = json.load(open("by.json"))
            assert plan["cost_model"] == "profiled" and plan["profile"].endswith("t.json")
        for kernel in table["kernels"]:
            kernel["seconds"] = 1.0
        json.dump(table, open("slow.json", "w"))
        text = run("plan", *MODEL, "pair.yaml", "--dp", "2", "--profile", "slow.json", "--json")
        assert json.loads(text)[0]["predicted"]["step_seconds"] > 10

        # What must not be mixed, and what is no table.
        table["device"] = "another"
        json.dump(table, open("other.json", "w"))
        assert "measured on another" in run("profile", plans[0], "-o", "other.json", code=2)
        assert "have 8" in run("profile", plans[0], "-o", "n.json", "--dtype", "float64", code=2)
        assert "goes by a table" in run("plan", *MODEL, "pair.yaml", "--cost", "profiled", code=2)
        assert "no table" in run("plan", *MODEL, "pair.yaml", "--cost", "analytic", "--profile",
                                 "t.json", code=2)
        assert "not a profile" in run("plan", *MODEL, "pair.yaml", "--profile", "dp.json", code=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
