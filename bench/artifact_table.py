#!/usr/bin/env python3
"""The workloads of nnScaler's artifact under three sets of constraints, as a Markdown table.

    bench/artifact_table.py build/release/bin/meshwright [GPUS ...]

Swin (image 1536, window 48), T5 and mBART (sequence 1024, huge vocabularies) on V100-32GB, global
batch 256, fp16, unfused attention: nnScaler, OSDI 2024, artifact evaluation scripts. Per workload the
simulated step time of the best plan, which is proved, and the time of the search, under
  megatron  tensor parallelism by operator name, pipelines, data parallelism (space megatron)
  alpa      no constraint on operators: everything the search over degrees has
  nnscaler  the same plus co-sharded attention and MLPs (Swin), an interlaced pipeline (T5, mBART)
"""
import os
import re
import subprocess
import sys
import tempfile

CLUSTERS = {4: "v100-32:1x4", 8: "v100-32:1x8", 16: "dgx-2:1", 32: "dgx-2:2"}
SPACES = {
    "megatron": {"*": ["--zero", "none", "--zero", "zero1", "--cp", "1", "--vpp", "1"]},
    "alpa": {"*": []},
    "nnscaler": {"swin": ["--space", "co-shard"], "t5": ["--space", "interlaced"],
                 "mbart": ["--space", "interlaced"]},
}


def run(binary, model, gpus, options):
    command = [binary, "plan", f"{model}-nnscaler-{gpus}", CLUSTERS[gpus], "--global-batch", "256",
               "--precision", "f16", "--attention", "unfused", "--top", "1"] + options
    with tempfile.TemporaryDirectory() as folder:
        plan = os.path.join(folder, "plan.json")
        done = subprocess.run(command + ["-o", plan], capture_output=True, text=True, timeout=1200)
        if os.path.exists(plan):
            subprocess.run([binary, "verify", plan], check=True, capture_output=True, timeout=600)
    text = done.stdout + done.stderr
    layout = re.search(r"^layout +(.*)$", text, re.M)
    step = re.search(r"^step +(\S+ \S+)", text, re.M)
    search = re.search(r"(\d+) simulated in (\S+ \S+)", text)
    took = search.group(2) if search else "?"
    if not step:
        closest = re.search(r"^closest +(\S.*?):", text, re.M)
        return ("does not fit" if closest else text.strip().splitlines()[-1][:60], "", took)
    return step.group(1), layout.group(1), took


def main():
    binary = sys.argv[1]
    sizes = [int(g) for g in sys.argv[2:]] or sorted(CLUSTERS)
    print("| workload | GPUs | constraints | step | layout | search |")
    print("|---|---:|---|---:|---|---:|")
    for model in ("swin", "t5", "mbart"):
        for gpus in sizes:
            for name, options in SPACES.items():
                chosen = options.get(model, options.get("*"))
                step, layout, took = run(binary, model, gpus, chosen)
                print(f"| {model} | {gpus} | {name} | {step} | {layout} | {took} |", flush=True)


if __name__ == "__main__":
    main()
