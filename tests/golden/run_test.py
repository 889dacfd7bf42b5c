#!/usr/bin/env python3
"""The transcript runner against a small program of its own."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "run.py"
PROGRAM = """#!/bin/sh
case $1 in
  hello) echo "hello"; echo; echo "took $$ ms"; echo "done" ;;
  fail) echo "no such thing" >&2; exit 2 ;;
  pwd) pwd ;;
esac
"""
HELLO = "$ program hello\n> hello\n>\n> took {{[0-9]+}} ms\n> done\n"


class Run(unittest.TestCase):
    def golden(self, text, *options):
        """Exit status, output and the golden file afterwards."""
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory, "program")
            program.write_text(PROGRAM)
            program.chmod(0o755)
            path = pathlib.Path(directory, "x.golden")
            path.write_text(text)
            run = subprocess.run([sys.executable, SCRIPT, path, "--binary", program, *options],
                                 capture_output=True, text=True, check=False)
            return run.returncode, run.stdout + run.stderr, path.read_text()

    def assert_good(self, text):
        status, output, _ = self.golden(text)
        self.assertEqual(status, 0, output)

    def assert_bad(self, text, message):
        status, output, _ = self.golden(text)
        self.assertEqual(status, 1, output)
        self.assertIn(message, output)

    def test_equal(self):
        self.assert_good("# Says hello.\n" + HELLO + "\n# And fails.\n$ program fail\n"
                         "! no such thing\n# exit 2\n")

    def test_ellipsis(self):
        self.assert_good("$ program hello\n> hello\n>\n> took [...] ms\n> done\n")
        self.assert_good("$ program hello\n> hello\n> [...]\n> done\n")
        self.assert_good("$ program hello\n> [...]\n> hello\n> [...]\n")
        self.assert_bad("$ program hello\n> [...]\n> hello\n", "+> done")

    def test_differences(self):
        self.assert_bad("$ program hello\n> hello\n", "+> done")
        self.assert_bad(HELLO + "> more\n", "-> more")
        self.assert_bad(HELLO.replace("[0-9]+", "[a-z]+"), "-> took {{[a-z]+}} ms")
        self.assert_bad("$ program fail\n! no such thing\n", "+# exit 2")
        self.assert_bad("$ program fail\n> no such thing\n# exit 2\n", "+! no such thing")
        self.assert_bad("$ program hello\n", "+> hello")

    def test_special_characters_are_literal(self):
        self.assert_bad("$ echo 'a+b (c)'\n> aab c\n", "+> a+b (c)")
        self.assert_good("$ echo 'a+b (c)'\n> a+b (c)\n")

    def test_runs_in_one_temporary_directory(self):
        self.assert_good("$ program pwd\n> {{.*/meshwright-golden-.*}}\n"
                         "$ echo x > file\n$ cat file\n> x\n")

    def test_text_that_is_no_transcript(self):
        self.assert_bad("hello\n", "x.golden:1: not a comment")
        self.assert_bad("$ true\n\n> late\n", "x.golden:3: not a comment")
        self.assert_bad("# nothing\n", "has no command")

    def test_update_keeps_comments_and_patterns(self):
        old = ("# Says hello.\n$ program hello\n> hallo\n> took {{[0-9]+}} ms\n\n# Fails.\n"
               "$ program fail\n# The end.\n")
        new = ("# Says hello.\n" + HELLO + "\n# Fails.\n$ program fail\n! no such thing\n# exit 2\n"
               "# The end.\n")
        status, output, text = self.golden(old, "--update")
        self.assertEqual((status, text), (0, new), output)
        self.assertEqual(self.golden(new, "--update")[2], new)


if __name__ == "__main__":
    unittest.main()
