#!/usr/bin/env python3
"""Runs golden transcripts: commands with what they must print.

    # A comment.
    $ meshwright plan llama-tiny cpu:4
    > step time  {{[0-9.]+ m?s}}
    > [...]
    $ meshwright plan no-such-model cpu:4
    ! meshwright: [...]: no such model
    # exit 2

`$` starts a command (for /bin/sh), `>` is a line of its standard output, `!` a line of its standard
error, `# exit N` its exit status (0 when not said). Within an expected line `[...]` stands for any
text and `{{regex}}` for a match; a line that is only `[...]` stands for any number of lines.

All commands of one file run in one temporary directory that holds a copy of examples/, with the
program's directory first in PATH. `--update` rewrites the files to what is printed now and keeps
the patterns that still match.
"""

import argparse
import difflib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ANY = "[...]"
PATTERN = re.compile(r"\{\{(.*?)\}\}|\[\.\.\.\]")
TIMEOUT_SECONDS = 120


class Step:
    """One command and what it must do; `lead` holds the comments and blank lines before it."""

    def __init__(self, lead, command):
        self.lead, self.command = lead, command
        self.out, self.err, self.status = [], [], 0

    def print(self, out, err, status):
        lines = [*self.lead, "$ " + self.command]
        lines += [("> " + line).rstrip() for line in out] + [("! " + line).rstrip() for line in err]
        return lines + ([f"# exit {status}"] if status else [])


def parse(path):
    """The steps of a golden file and its closing comments."""
    steps, lead = [], []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        status = re.fullmatch(r"# exit (\d+)", line)
        if line.startswith("$ "):
            steps.append(Step(lead, line[2:]))
            lead = []
        elif line.startswith("#") and not status or not line.strip():
            lead.append(line)
        elif steps and not lead and status:
            steps[-1].status = int(status.group(1))
        elif steps and not lead and line[0] in ">!" and line[1:2] in ("", " "):
            (steps[-1].out if line[0] == ">" else steps[-1].err).append(line[2:])
        else:
            raise SystemExit(
                f"{path}:{number}: not a comment, a command or what follows one: {line}")
    if not steps:
        raise SystemExit(f"{path}: has no command")
    return steps, lead


def line_matches(pattern, line):
    regex, end = "", 0
    for match in PATTERN.finditer(pattern):
        regex += re.escape(pattern[end:match.start()])
        regex += f"(?:{match.group(1)})" if match.group(1) is not None else ".*"
        end = match.end()
    return re.fullmatch(regex + re.escape(pattern[end:]), line) is not None


def matches(patterns, lines):
    """Whether the lines fit the patterns; a pattern that is only [...] takes any number of them."""
    reached = {0}  # How many lines the patterns so far may have taken.
    for pattern in patterns:
        if pattern == ANY:
            reached = set(range(min(reached), len(lines) + 1)) if reached else set()
        else:
            reached = {n + 1 for n in reached if n < len(lines) and line_matches(pattern, lines[n])}
    return len(lines) in reached


def update(patterns, lines):
    """The lines, with each pattern that still matches, in order, in the place of its line."""
    if matches(patterns, lines):
        return patterns
    patterns = [pattern for pattern in patterns if PATTERN.search(pattern) and pattern != ANY]
    result = []
    for line in lines:
        kept = next((i for i, pattern in enumerate(patterns) if line_matches(pattern, line)), None)
        result.append(line if kept is None else patterns[kept])
        patterns = patterns if kept is None else patterns[kept + 1:]
    return result


def run(command, directory, binary):
    environment = os.environ | {
        "PATH": f"{binary.parent}:{os.environ['PATH']}", "HOME": directory, "LC_ALL": "C.UTF-8",
        "TZ": "UTC", "COLUMNS": "100", "NO_COLOR": "1"}
    try:
        done = subprocess.run(["/bin/sh", "-c", command], cwd=directory, env=environment, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, check=False,
                              timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return [], [f"no answer within {TIMEOUT_SECONDS} s"], 124
    return ([line.rstrip() for line in done.stdout.splitlines()],
            [line.rstrip() for line in done.stderr.splitlines()], done.returncode)


def check(path, binary, rewrite):
    """Runs one golden file; prints every difference and returns whether there was none."""
    steps, rest = parse(path)
    good, now = True, []
    with tempfile.TemporaryDirectory(prefix="meshwright-golden-") as directory:
        if (ROOT / "examples").is_dir():
            shutil.copytree(ROOT / "examples", pathlib.Path(directory, "examples"))
        for step in steps:
            out, err, status = run(step.command, directory, binary)
            if rewrite:
                now += step.print(update(step.out, out), update(step.err, err), status)
            elif not (matches(step.out, out) and matches(step.err, err) and status == step.status):
                good = False
                print(f"{path}: $ {step.command}")
                print(*difflib.unified_diff(step.print(step.out, step.err, step.status),
                                            step.print(out, err, status), "expected", "printed",
                                            lineterm=""), sep="\n")
    if rewrite:
        path.write_text("\n".join(now + rest) + "\n")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path,
                        help="default: all beside this script")
    parser.add_argument("--binary", type=pathlib.Path,
                        default=ROOT / "build/release/bin/meshwright")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    if not arguments.binary.is_file():
        raise SystemExit(f"{arguments.binary}: no such program; build it first")
    files = arguments.files or sorted(pathlib.Path(__file__).parent.glob("*.golden"))
    good = [check(path, arguments.binary.resolve(), arguments.update) for path in files]
    print(f"{len(good)} transcripts, {good.count(False)} differ")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
