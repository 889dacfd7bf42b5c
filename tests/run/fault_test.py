#!/usr/bin/env python3
"""Ranks killed and stopped anywhere: a clean end, who and where, and the loss curve goes on.

With --cases N that many random ones by hand, --seed S others than those of the last time.
"""

import json
import pathlib
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import uuid

import launch

STEPS = 5
LIMIT = 10.0  # Seconds from a fault to the end of all.
# Name, cluster, what to ask of the plan.
PLANS = [
    ("tp2", "cpu:2", ["--tp", "2"]),
    ("pp2dp2", "cpu:2x2", ["--pp", "2", "--dp", "2"]),
    ("dp3zero3", "cpu:3", ["--dp", "3", "--zero", "zero3"]),
    ("pp4", "cpu:4x1", ["--pp", "4"]),
]
RANKS = {"tp2": 2, "pp2dp2": 4, "dp3zero3": 3, "pp4": 4}
SETTINGS = ["--dtype", "float64", "--lr", "0.05"]


def processes_of(mark):
    """Those that carry this mark in their environment."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            pass  # It has just ended, or is not ours.
    return found


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Reader(threading.Thread):
    """Reads a stream to its end and remembers when the last line came."""

    def __init__(self, stream):
        super().__init__(daemon=True)
        self.stream, self.text, self.last = stream, "", time.monotonic()
        self.start()

    def run(self):
        with self.stream:
            for line in self.stream:
                self.text += line
                self.last = time.monotonic()


class Case:
    """One run with a fault in it, in a folder of its own."""

    def __init__(self, folder, name, fault_rank, step, place, number):
        self.folder, self.name = pathlib.Path(folder), name
        self.plan = self.folder / f"{name}.json"
        self.rank, self.step, self.place, self.number = fault_rank, step, place, number
        self.mark = f"mw-{uuid.uuid4()}"
        self.env = {"MESHWRIGHT_TEST_FAULT": f"{fault_rank}:{step}:{place}:{number}",
                    "MW_MARK": self.mark}
        self.checkpoints = self.folder / self.mark

    def __str__(self):
        return f"{self.name} rank {self.rank} step {self.step} place {self.place} " \
               f"signal {self.number}"

    def words(self):
        return ["run", self.plan, "--steps", STEPS, "--checkpoint", self.checkpoints,
                "--checkpoint-every", 1, *SETTINGS]

    def local(self):
        """Returns what is wrong ('' = nothing) and the seconds from the fault to the end; None when
        the place was never reached."""
        process = launch.start(*self.words(), env=self.env)
        out, err = Reader(process.stdout), Reader(process.stderr)
        try:
            code = process.wait(timeout=90)
        except subprocess.TimeoutExpired:
            process.kill()
            return "has not ended", 90
        end = time.monotonic()
        out.join()
        err.join()
        left = processes_of(self.mark)
        if code == 0:
            return ("left: " + str(left) if left else ""), None
        took = end - out.last
        what = "was killed by signal 9" if self.number == 9 else "is stopped by a signal"
        message = err.text
        said = [line for line in message.splitlines() if line]
        wrong = ""
        if code != 1 or len(said) != 1 or left:
            wrong = f"exit code {code}, {len(said)} lines, left {left}"
        elif f"rank {self.rank} {what}" not in message or f"step {self.step}, " not in message:
            wrong = "does not say who and where"
        if wrong:
            return f"{self}: {wrong}\n{out.text}{message}", took
        return self.resumed(), took

    def resumed(self):
        """Goes on from the last checkpoint: at most the step under way is done again."""
        steps = [p for p in self.checkpoints.glob("step-*")] if self.checkpoints.exists() else []
        newest = max((int(p.name[5:]) for p in steps), default=0)
        if newest < self.step - 1:
            return f"{self}: the last checkpoint is of step {newest}"
        if newest in (0, STEPS):
            return ""
        code, out, err = launch.meshwright("resume", self.checkpoints, self.plan, "--steps", STEPS,
                                           *SETTINGS)
        return self.compare(newest, code, out, err)

    def compare(self, newest, code, out, err):
        curve = json.loads((self.folder / f"{self.name}.curve").read_text())
        got = launch.losses(out)
        wanted = {int(s): v for s, v in curve.items() if int(s) > newest}
        if code != 0 or got.keys() != wanted.keys():
            return f"{self}: resuming after {newest}: exit code {code}\n{out}{err}"
        for s, loss in wanted.items():
            if abs(got[s] - loss) > 1e-11:
                return f"{self}: loss of step {s} is {got[s]}, not {loss}"
        return ""

    def restarted(self):
        code, out, err = launch.meshwright(*self.words(), "--restart", 2, env=self.env)
        if processes_of(self.mark):
            return f"{self}: processes are left"
        return self.compare(0, code, out, err)

    def env_mode(self):
        """No supervisor: every rank finds out by itself."""
        port, started = free_port(), []
        ranks = RANKS[self.name]
        for rank in range(ranks):
            env = {**self.env, "RANK": str(rank), "WORLD_SIZE": str(ranks),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            started.append(launch.start(*self.words(), "--ranks", "env", env=env))
        outs = [Reader(p.stdout) for p in started]
        errs = [Reader(p.stderr) for p in started]
        wrong, end = "", 0.0
        for rank, process in enumerate(started):
            if rank == self.rank and self.number != 9:
                continue
            try:
                process.wait(timeout=90)
            except subprocess.TimeoutExpired:
                wrong += f"rank {rank} has not ended; "
            end = time.monotonic()
        for process in started:
            process.kill()
            process.wait()
        # Those that ended by themselves have done so before.
        for reader in outs + errs:
            reader.join()
        if started[0].returncode == 0:
            return wrong, None
        took = end - outs[0].last
        for rank, process in enumerate(started):
            if rank == self.rank:
                continue
            text = errs[rank].text
            if process.returncode in (0, 2, 70) or f"rank {self.rank} " not in text:
                wrong += f"rank {rank}: exit code {process.returncode}: {text}; "
            elif not re.search(r"step \d", text):
                wrong += f"rank {rank} does not say where: {text}; "
        return (f"{self}: {wrong}" if wrong else self.resumed()), took


def prepare(folder):
    for name, cluster, words in PLANS:
        path = launch.plan(pathlib.Path(folder, f"{name}.json"), "llama-tiny", cluster, *words,
                           batch=12)
        code, out, err = launch.meshwright("run", path, "--steps", STEPS, *SETTINGS)
        if code != 0:
            raise AssertionError(out + err)
        pathlib.Path(folder, f"{name}.curve").write_text(json.dumps(launch.losses(out)))


def random_case(folder, draw):
    name = draw.choice(list(RANKS))
    place = "checkpoint" if draw.random() < 0.1 else draw.randrange(80)
    return Case(folder, name, draw.randrange(RANKS[name]), draw.randint(1, STEPS), place,
                draw.choice([signal.SIGKILL, signal.SIGSTOP]).value)


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        prepare(cls.folder.name)

    def check(self, result):
        wrong, took = result
        self.assertEqual(wrong, "")
        self.assertIsNotNone(took, "the fault did not happen")
        self.assertLess(took, LIMIT)

    def test_supervised(self):
        for case in (("tp2", 0, 2, 20, 9), ("tp2", 1, 3, 5, 19), ("pp2dp2", 3, 2, 11, 9),
                     ("dp3zero3", 0, 4, 0, 9), ("dp3zero3", 1, 3, "checkpoint", 9),
                     ("pp4", 2, 5, 3, 19)):
            with self.subTest(case=case):
                self.check(Case(self.folder.name, *case).local())

    def test_restarted(self):
        for case in (("tp2", 0, 3, 8, 9), ("pp4", 3, 4, "checkpoint", 9)):
            with self.subTest(case=case):
                self.assertEqual(Case(self.folder.name, *case).restarted(), "")

    def test_planned_again(self):
        case = Case(self.folder.name, "pp2dp2", 1, 4, 9, 9)
        code, out, err = launch.meshwright(*case.words(), "--restart", 1, "--replan", env=case.env)
        self.assertRegex(err, r"planned again: \S.* on 3 of 3 devices")
        self.assertRegex(err, r"restart 1 of 1, from \S+/step-00000003")
        self.assertEqual(case.compare(0, code, out, err), "")

    def test_without_supervisor(self):
        for case in (("tp2", 1, 2, 9, 9), ("dp3zero3", 0, 3, 4, 9), ("pp2dp2", 2, 3, 7, 19)):
            with self.subTest(case=case):
                self.check(Case(self.folder.name, *case).env_mode())

    def test_interrupted(self):
        for again in (False, True):
            case = Case(self.folder.name, "tp2", 7, 1, 0, 9)
            process = launch.start("run", case.plan, "--steps", 100000, "--checkpoint",
                                   case.checkpoints, env=case.env)
            while not process.stdout.readline().startswith("step 2/"):
                pass
            process.send_signal(signal.SIGINT)
            if again:
                process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, out + err)
            self.assertIn("interrupted", err)
            self.assertEqual(processes_of(case.mark), [])
            if not again:
                step, = [int(p.name[5:]) for p in case.checkpoints.glob("step-*")]
                self.assertIn(f"all ranks ended after step {step}", err)
                self.assertIn(f"stopped after step {step} of 100000", out)


def by_hand(cases, seed, env):
    draw, done, worst, wrong = random.Random(seed), 0, 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder)
        while done < cases:
            case = random_case(folder, draw)
            text, took = case.env_mode() if env else case.local()
            if took is None:
                continue
            done += 1
            worst = max(worst, took)
            wrong += bool(text) or took >= LIMIT
            print(f"{done} {case}: {text or 'ok'} {took:.1f} s", flush=True)
    print(f"{done} cases, {wrong} wrong; slowest end {worst:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    given, others = launch.main(__doc__, [
        ("--cases", {"type": int, "default": 0}), ("--seed", {"type": int, "default": 1}),
        ("--env", {"action": "store_true", "help": "by hand: without supervisor"})])
    if given.cases:
        raise SystemExit(by_hand(given.cases, given.seed, given.env))
    launch.run_tests(others)
