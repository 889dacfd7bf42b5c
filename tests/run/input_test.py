#!/usr/bin/env python3
"""Wrong input for run and resume: a message that says what and where, exit code 2, no hang."""

import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import unittest

import launch

SHORT = ["--steps", 2]


class Input(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.plan = launch.plan(cls.folder / "plan.json", "llama-tiny", "cpu:2", "--tp", "2")
        cls.saved = cls.folder / "saved"
        code, out, err = launch.meshwright("run", cls.plan, *SHORT, "--checkpoint", cls.saved)
        if code != 0:
            raise AssertionError(out + err)

    def refused(self, *words, message, code=2, **more):
        got, out, err = launch.meshwright(*words, timeout=60, **more)
        self.assertEqual(got, code, out + err)
        self.assertIn(message, err)
        # One message, unless each rank says its own.
        if "env" not in more:
            self.assertEqual(len(err.strip().splitlines()), 1, err)
        return err

    def other(self, model="llama-tiny", **more):
        return launch.plan(self.folder / "other.json", model, "cpu:2", "--tp", "2", **more)

    def test_options(self):
        run = ["run", self.plan]
        for words, message in (
                (["--steps", 0], "--steps: must be between 1"),
                (["--lr", "1e30"], "--lr: must be at least 0"),
                (["--dtype", "f16"], "--dtype: must be one of float64, float32, bfloat16"),
                (["--ranks", "all"], "--ranks: must be local or env: 'all'"),
                (["--timeout", 0], "--timeout: must be more than 0"),
                (["--checkpoint-every", 2], "--checkpoint-every: a checkpoint every 2 steps"),
                (["--restart", 1], "--restart: a restart goes on from a checkpoint"),
                (["--replan"], "--replan: says how to restart"),
                (["--port", 70000], "--port: must be between 1 and 65535"),
                (["--data", self.folder / "none"], "none: no such file"),
                (["--device", "cuda"], "built without NCCL"),
                (["--profile", "/nowhere/trace.json"], "/nowhere/trace.json: cannot be written"),
                (["--checkpoint", "/proc/none"], "/proc/none"),
                (["--checkpoint", self.saved], "saved: holds checkpoints of another run")):
            with self.subTest(words=words):
                self.refused(*run, *words, message=message)

    def test_data_beyond_the_vocabulary(self):
        data = self.folder / "tokens.bin"
        data.write_bytes(b"\x00\x01" * 100 + b"\xff\xff")
        self.refused("run", self.plan, "--data", data, message="token 65535 at position 100")

    def test_a_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            self.refused("run", self.plan, "--port", port, message=f"port {port} cannot be had")

    def test_models(self):
        config = launch.swin(self.folder)
        plan = launch.plan(self.folder / "gone.json", config, "cpu:2", seq=None)
        config.unlink()
        self.refused("run", plan, message="swin.json")
        self.refused("run", self.folder / "none.json", message="none.json: no such file")

    def test_what_does_not_fit_a_checkpoint(self):
        resume = ["resume", self.saved]
        self.refused(*resume, self.plan, "--steps", 2, message="it is of step 2, and the run is to")
        self.refused(*resume, self.plan, "--steps", 3, "--dtype", "float64",
                     message="it was written with --dtype float32, not float64")
        self.refused(*resume, self.other(optimizer="adamw"), "--steps", 3,
                     message="it holds the state of sgd, the plan trains with adamw")
        self.refused(*resume, self.other("gpt-tiny"), "--steps", 3, message="of another model")
        self.refused(*resume, self.other(batch=4), "--steps", 3, message="are of 8 samples")
        self.refused("resume", self.folder / "none", self.plan, message="none: no such directory")

    def test_damaged_checkpoints(self):
        other = self.folder / "of another run"
        launch.meshwright("run", self.plan, *SHORT, "--seed", 3, "--checkpoint", other)
        name = "step-00000002/rank-0001.bin"

        def shorten(path):
            os.truncate(path, path.stat().st_size - 1)

        def flip(path):
            with open(path, "r+b") as file:
                file.seek(5000)
                file.write(b"x")

        for damage, message in ((shorten, "bytes were written"), (flip, "is damaged: the checksum"),
                                (os.unlink, "no such file"),
                                (lambda path: shutil.copy(other / name, path), "is not rank 1's")):
            copy = self.folder / "damaged"
            shutil.copytree(self.saved, copy)
            damage(copy / name)
            err = self.refused("resume", copy, self.plan, "--steps", 3,
                               message=message.replace("bytes were", "were"))
            self.assertIn(name, err)
            shutil.rmtree(copy)

    def test_a_full_disk(self):
        place = self.folder / "small"
        place.mkdir()
        # About one checkpoint of 3.4 MB a rank: the first fits, the second does not.
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9M", "none", place],
                                 capture_output=True, check=False)
        if mounted.returncode != 0:
            self.skipTest("no tmpfs can be mounted here")
        try:
            got, out, err = launch.meshwright("run", self.plan, "--steps", 4, "--checkpoint",
                                              place / "c", "--checkpoint-every", 1)
            self.assertEqual(got, 2, out + err)
            self.assertIn("No space left on device", err)
            self.assertIn("the last completed checkpoint is step 1", err)
            self.assertEqual([p.name for p in (place / "c").iterdir()], ["step-00000001"])
            elsewhere = self.folder / "elsewhere"
            code, out, err = launch.meshwright("resume", place / "c", self.plan, "--steps", 2,
                                               "--checkpoint", elsewhere)
            self.assertEqual((code, err), (0, ""), out)
        finally:
            subprocess.run(["umount", place], check=True)

    def start_ranks(self, *jobs):
        """One rank per list of words; returns exit codes and texts."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        started = [launch.start("run", *words, "--ranks", "env",
                                env={"RANK": str(rank), "WORLD_SIZE": str(len(jobs)),
                                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
                   for rank, words in enumerate(jobs)]
        texts = []
        for process in started:
            try:
                texts.append("".join(process.communicate(timeout=60)))
            except subprocess.TimeoutExpired:
                for other in started:
                    other.kill()
                raise
        return [p.returncode for p in started], texts

    def test_ranks_of_a_launcher(self):
        code, out, err = launch.meshwright("run", self.plan, "--ranks", "env")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("WORLD_SIZE is not set", err)
        plan, short = str(self.plan), [str(self.plan), *SHORT]
        codes, texts = self.start_ranks(short, short)
        self.assertEqual(codes, [0, 0], texts)
        self.assertEqual(sorted(launch.losses(texts[0])), [1, 2])
        codes, texts = self.start_ranks(short, short, short)
        self.assertEqual(codes, [2, 2, 2], texts)
        for text in texts:
            self.assertIn("the plan is for 2 devices, but 3 ranks run it", text)
        codes, texts = self.start_ranks(short, [plan, "--steps", 3])
        self.assertEqual(codes, [2, 2], texts)
        for text in texts:
            self.assertIn("ranks disagree on settings: rank 0 has 'steps 2', rank 1 does not", text)
        codes, texts = self.start_ranks(short, [str(self.other(batch=4)), *SHORT])
        self.assertEqual(codes, [2, 2], texts)
        for text in texts:
            self.assertIn("ranks disagree on plan", text)
        codes, texts = self.start_ranks(short, [str(self.folder / "none.json"), *SHORT])
        self.assertEqual(codes, [2, 2], texts)
        self.assertIn("ranks disagree on plan", texts[0])
        self.assertIn("none.json: no such file", texts[1])
        # What only one rank finds ends all.
        codes, texts = self.start_ranks([*short, "--data", str(self.folder / "none")],
                                        [*short, "--data", str(self.folder / "none")])
        self.assertEqual(codes, [2, 2], texts)

    def test_a_loss_that_is_no_number(self):
        # Momentum beyond all bounds.
        plan = self.other("gpt-tiny")
        got, out, err = launch.meshwright("run", plan, "--steps", 50, "--lr", "1000000")
        if got == 0:
            self.skipTest("this model's loss stays finite whatever its weights are")
        self.assertEqual(got, 2, out + err)
        self.assertRegex(err, r"the loss of step \d+ is -?(nan|inf)")

    def test_a_difference_is_an_answer(self):
        code, out, err = launch.meshwright("run", self.plan, *SHORT, "--verify", "--tolerance",
                                           "1e-30")
        self.assertEqual((code, err), (1, ""), out)
        self.assertIn("ABOVE 1e-30", out)


if __name__ == "__main__":
    _, others = launch.main(__doc__)
    launch.run_tests(others)
