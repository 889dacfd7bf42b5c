#!/usr/bin/env python3
"""Real processes equal one device: every named plan space on a model that it fits, float64.

With --sweep every space on every model and 2 and 4 ranks, by hand: some minutes.
"""

import concurrent.futures
import pathlib
import re
import tempfile
import unittest

import launch

FOUR = "a100-80:2x2"
TWO = "a100-80:1x2"
EIGHT = "a100-80:2x4"
# Space, model, cluster. (tensor-2.5d has three axes.)
CASES = [
    ("1f1b", "gpt-tiny", FOUR), ("3f1b", "evoformer-tiny", TWO),
    ("all-to-all-context", "llama-tiny", TWO), ("chimera", "llama-tiny", TWO),
    ("co-shard", "gpt-tiny", TWO), ("data-parallel", "swin", FOUR), ("dualpipe", "gpt-tiny", TWO),
    ("expert-parallel", "moe-tiny", FOUR), ("fsdp", "t5-tiny", TWO), ("gpipe", "t5-tiny", TWO),
    ("hybrid-sharding", "llama-tiny", FOUR), ("interlaced", "t5-tiny", TWO),
    ("interleaved", "gpt-tiny", TWO), ("megatron-tp", "swin", TWO),
    ("megatron-tp-sp", "llama-tiny", FOUR), ("ring-context", "gpt-tiny", FOUR),
    ("tensor-2.5d", "gpt-tiny", EIGHT), ("tensor-2d", "gpt-tiny", FOUR),
    ("terapipe", "llama-tiny", TWO), ("zb-h1", "moe-tiny", TWO), ("zb-v", "llama-tiny", TWO),
    ("zero1", "evoformer-tiny", FOUR), ("zero2", "gpt-tiny", FOUR),
]
MODELS = ["gpt-tiny", "llama-tiny", "moe-tiny", "t5-tiny", "swin", "evoformer-tiny"]
OWN_LENGTH = ("swin", "evoformer-tiny")


def run_case(folder, space, model, cluster, optimizer="sgd", tolerance="1e-12"):
    """Returns what is wrong, or '', and the largest difference."""
    name = f"{space} {model} {cluster} {optimizer}"
    path = pathlib.Path(folder, name.replace(" ", "_").replace(":", "_") + ".json")
    try:
        launch.plan(path, launch.swin(folder) if model == "swin" else model, cluster, "--space",
                    space, seq=None if model in OWN_LENGTH else 16, optimizer=optimizer)
    except AssertionError as refused:
        return f"no plan: {refused}", 0
    code, out, err = launch.meshwright("run", path, "--dtype", "float64", "--verify", "--tolerance",
                                       tolerance, "--steps", 3, "--lr",
                                       "0.1" if optimizer == "sgd" else "1e-3", timeout=300)
    found = re.search(r"loss differs by (\S+), parameters by (\S+)", out)
    if code != 0 or not found or len(launch.losses(out)) != 3 or err:
        return f"{name}: exit code {code}\n{out}{err}", 0
    return "", max(float(found[1]), float(found[2]))


class Spaces(unittest.TestCase):
    def test_every_named_space(self):
        code, out, _ = launch.meshwright("space")
        names = set(re.findall(r"^(\S+) ", out, re.M))
        self.assertEqual(code, 0)
        self.assertLessEqual({space for space, _, _ in CASES}, names)
        self.assertEqual(len({space for space, _, _ in CASES}), 23)
        wrong = []
        with tempfile.TemporaryDirectory() as folder:
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                for text, _ in pool.map(lambda case: run_case(folder, *case), CASES):
                    wrong += [text] if text else []
        self.assertEqual(wrong, [])

    def test_adam(self):
        with tempfile.TemporaryDirectory() as folder:
            for optimizer in ("adam", "adamw"):
                self.assertEqual(run_case(folder, "zero1", "llama-tiny", TWO, optimizer, "1e-9")[0],
                                 "")


def sweep():
    runs, skipped, worst = 0, 0, 0.0
    code, out, _ = launch.meshwright("space")
    with tempfile.TemporaryDirectory() as folder:
        for space in sorted({space for space, _, _ in CASES}):
            for model in MODELS:
                for cluster in (TWO, FOUR):
                    text, difference = run_case(folder, space, model, cluster)
                    planned = not text.startswith("no plan")
                    runs += planned
                    skipped += not planned
                    worst = max(worst, difference)
                    print(text[:200] or f"ok {space} {model} {cluster} {difference:.1e}", flush=True)
    print(f"{runs} runs, {skipped} without a plan; largest difference {worst:.1e}")


if __name__ == "__main__":
    given, others = launch.main(__doc__, [("--sweep", {"action": "store_true"})])
    if given.sweep:
        sweep()
    else:
        launch.run_tests(others)
