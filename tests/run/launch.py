"""Starts meshwright for the tests beside it."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import unittest

SKIPPED = 77

# A Swin of two stages on images of 28 x 28, with shifted windows.
SWIN = {"model_type": "swin", "architectures": ["SwinForImageClassification"], "image_size": 28,
        "patch_size": 2, "num_channels": 3, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
        "window_size": 7, "mlp_ratio": 2.0, "qkv_bias": True, "hidden_act": "gelu",
        "num_labels": 10, "use_absolute_embeddings": False}

BINARY = None


def environment(**more):
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_NTASKS",
             "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MESHWRIGHT_TEST_FAULT",
             "MESHWRIGHT_BEATS", "MESHWRIGHT_INTERFACE")
    env = {k: v for k, v in os.environ.items() if k not in names}
    env.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    env.update(more)
    return env


def start(*words, env=None, **more):
    return subprocess.Popen([BINARY, *map(str, words)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=environment(**(env or {})),
                            **more)


def meshwright(*words, env=None, timeout=120, **more):
    """Returns exit code, standard output, standard error."""
    process = start(*words, env=env, **more)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{words} has not ended after {timeout} s:\n{out}{err}") from None
    return process.returncode, out, err


def plan(path, model, cluster, *words, batch=8, seq=16, optimizer="sgd"):
    """Writes a plan file; returns its path. Models of their own length get none."""
    length = [] if seq is None else ["--seq", seq]
    code, out, err = meshwright("plan", model, cluster, "--global-batch", batch, *length,
                                "--optimizer", optimizer, *words, "-o", path, "--force")
    if code != 0:
        raise AssertionError(f"no plan of {model} on {cluster} {words}: {out}{err}")
    return path


def swin(folder):
    path = pathlib.Path(folder, "swin.json")
    path.write_text(json.dumps(SWIN))
    return path


def losses(out):
    """By step."""
    found = {}
    for line in out.splitlines():
        words = line.split()
        if line.startswith("step ") and words[2] == "loss":
            found[int(words[1].split("/")[0])] = float(words[3])
    return found


def main(description, options=()):
    """Runs the tests of the program that was started; 77 where the build runs no plans."""
    global BINARY
    arguments = argparse.ArgumentParser(description=description.splitlines()[0])
    arguments.add_argument("--binary", required=True, help="the meshwright program")
    for name, more in options:
        arguments.add_argument(name, **more)
    given, rest = arguments.parse_known_args()
    BINARY = given.binary
    if not pathlib.Path(BINARY).with_name("meshwright-rank").exists():
        print("skipped: this build has no meshwright-rank (libtorch was not found)")
        sys.exit(SKIPPED)
    return given, rest


def run_tests(rest):
    unittest.main(module="__main__", argv=[sys.argv[0], *rest], verbosity=2)
