#!/usr/bin/env python3
"""tools/netlab on this machine: makes small labs, measures them, breaks them.

Ends with 77 (skipped, for CTest) and a reason where no lab can be made. The labs have names of
their own, so that one in use is left alone.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NETLAB = str(ROOT / "tools/netlab")
LAB = f"t{os.getpid()}"
PREFIX = f"mwlab-{LAB}"
SKIPPED = 77
MEGABYTE = 1_000_000
BINARY = None

TWO_HOSTS = """
name: two_hosts
kinds:
  - {name: fast, memory: 1 GiB, memory_bandwidth: 1 GB/s, fp32: 2 GFLOP/s, pcie: 5 GB/s}
  - {name: slow, memory: 1 GiB, memory_bandwidth: 1 GB/s, fp32: 1 GFLOP/s, pcie: 5 GB/s}
hosts:
  - {name: left, devices: {kind: fast}, nics: {gbps: 0.1}}
  - {name: right, devices: [{kind: fast}, {kind: slow}], nics: {gbps: 0.1}}
"""
# Direct links: what one host sends to another is limited, and more so all that it sends.
MESH = """
name: mesh
hosts:
  - {count: 3, devices: {kind: cpu}, nics: {gbps: 0.06}}
levels:
  - {level: rack, pair_limit: 40 Mb/s}
"""
TRUNK = """
name: trunk
hosts:
  - {count: 4, devices: {kind: cpu}, nics: {gbps: 0.2}}
levels:
  - {level: pair, hosts_per: 2, uplink: 40 Mb/s}
  - {level: spine}
"""
# Rank 0 sends SIZE bytes to rank 1 and nothing else.
TRANSFER = f"""
import os, socket, time
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
if rank == 0:
    connection, _ = socket.create_server(("", port)).accept()
    connection.sendall(bytes({3 * MEGABYTE}))
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(1) == b""
elif rank == 1:
    until = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], port))
            break
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)
    while connection.recv(65536):
        pass
"""


def netlab(*words, timeout=120, **more):
    return subprocess.run([sys.executable, NETLAB, "--lab", LAB, *words], capture_output=True,
                          text=True, timeout=timeout, check=False, **more)


def remains():
    """What is left of this test's labs."""
    places = [pathlib.Path("/run/netns"), pathlib.Path("/run/meshwright-netlab"),
              pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/sys/fs/cgroup/cpu")]
    return sorted(str(path) for place in places if place.is_dir() for path in place.iterdir()
                  if path.name.startswith(PREFIX) or LAB in path.name)


class Netlab(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(netlab, "down")

    def up(self, text, *words, status=0):
        path = pathlib.Path(self.folder.name, "lab.yaml")
        path.write_text(text)
        done = netlab("up", str(path), *words, *(["--meshwright", BINARY] if BINARY else []))
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def run_ranks(self, *command, words=(), status=0, **more):
        done = netlab("run", *words, "--", *command, **more)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def assert_none_run(self, command):
        """No process has this command line, soon at the latest."""
        wanted = command.replace(" ", "\0").encode()
        def found():
            lines = []
            for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    lines.append(path.read_bytes())
                except OSError:
                    pass  # It has just ended.
            return [line for line in lines if line.startswith(wanted)]
        until = time.monotonic() + 2
        while found() and time.monotonic() < until:
            time.sleep(0.05)
        self.assertEqual(found(), [])

    def test_two_hosts_from_up_to_down(self):
        said = self.up(TWO_HOSTS)
        self.assertIn("two_hosts: 3 devices in 2 hosts, 1 switches", said)
        measured = json.loads(netlab("measure", "--seconds", "2", "--json").stdout)
        link, = measured["links"]
        self.assertEqual(link["described"], 100e6)
        # Ethernet, IP and TCP headers are part of the rate: 95.6 % are left.
        self.assertAlmostEqual(link["measured"] / 100e6, 0.956, delta=0.06)
        self.assertLess(link["measured_latency"], 0.05)
        shares = [row["share"] for row in measured["devices"]]
        self.assertAlmostEqual(shares[0] / shares[2], 2, places=5)
        for row in measured["devices"]:  # Other work on the machine may take more away.
            self.assertLess(row["measured"], row["share"] * 1.15 + 0.02)

        self.assertEqual(netlab("bytes", "--reset").returncode, 0)
        self.run_ranks(sys.executable, "-c", TRANSFER)
        rows = json.loads(netlab("bytes", "--json").stdout)
        if rows["h0"]["resent"] == 0:
            self.assertEqual(rows["h0"]["sent_payload"], 3 * MEGABYTE)
        self.assertEqual(rows["h1"]["sent_payload"], 0)
        self.assertGreaterEqual(rows["h1"]["received_bytes"], 3 * MEGABYTE)

        self.assertIn("a lab is up already (two_hosts)", self.up(TWO_HOSTS, status=2))
        self.assertEqual(netlab("down").returncode, 0)
        self.assertEqual(remains(), [])
        again = netlab("down")
        self.assertEqual((again.returncode, again.stdout), (0, "no lab is up\n"))
        self.assertEqual(remains(), [])

    def test_limits_between_pairs(self):
        self.up(MESH, "--share", "none")
        measured = json.loads(netlab("measure", "--seconds", "2", "--json", "--no-cpu").stdout)
        link, = measured["links"]
        self.assertEqual((link["described"], link["alike"]), (40e6, 6))
        self.assertAlmostEqual(link["measured"] / 40e6, 0.956, delta=0.06)

    def test_a_trunk_is_shared(self):
        self.up(TRUNK, "--share", "none")
        measured = json.loads(netlab("measure", "--seconds", "2", "--json", "--no-cpu").stdout)
        near, far, *trunks = measured["links"]
        self.assertEqual([near["described"], far["described"]], [200e6, 40e6])
        self.assertEqual([(row["what"], row["described"]) for row in trunks],
                         [("out of pair0, 2 at once", 40e6), ("out of pair1, 2 at once", 40e6)])
        for row in measured["links"]:
            self.assertAlmostEqual(row["measured"] / row["described"], 0.956, delta=0.08)
        for row in trunks:
            self.assertGreater(min(row["flows"]) / sum(row["flows"]), 0.3)

    def test_ranks_see_their_place(self):
        self.up(TWO_HOSTS)
        show = ("echo $RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $WORLD_SIZE $MASTER_ADDR "
                "$MESHWRIGHT_INTERFACE >&2; ip -br addr show mw0 | grep -o '10[.0-9]*/24' >&2; "
                "echo out $RANK")
        done = self.run_ranks("sh", "-c", show)
        self.assertEqual(done.stdout, "out 0\n")
        lines = set(done.stderr.splitlines())
        self.assertLessEqual({"0 0 1 3 10.77.0.1 mw0", "10.77.0.1/24",
                              "[rank 1] 1 0 2 3 10.77.0.1 mw0", "[rank 1] 10.77.0.2/24",
                              "[rank 2] 2 1 2 3 10.77.0.1 mw0", "[rank 2] 10.77.0.2/24"}, lines)
        done = self.run_ranks("sh", "-c", "echo out $RANK", words=["--all-output"])
        self.assertEqual(done.stdout, "out 0\n")
        self.assertEqual(set(done.stderr.splitlines()), {"[rank 1] out 1", "[rank 2] out 2"})

    def test_no_program(self):
        self.up(TWO_HOSTS, "--share", "none")
        self.assertIn("/nowhere/train is no program",
                      self.run_ranks("/nowhere/train", status=2).stderr)

    def test_a_failing_rank_ends_the_others(self):
        self.up(TWO_HOSTS)
        child = subprocess.Popen(
            [sys.executable, NETLAB, "--lab", LAB, "run", "--", "sh", "-c",
             "if [ $RANK = 1 ]; then exit 7; fi; sleep 100"], stderr=subprocess.PIPE, text=True)
        self.assertEqual(child.stderr.readline(),
                         "netlab: rank 1 ended with 7; ending the others\n")
        start = time.monotonic()
        self.assertEqual(child.communicate(timeout=20)[1], "")
        self.assertEqual(child.returncode, 7)
        self.assertLess(time.monotonic() - start, 4)
        start = time.monotonic()
        # One that does not listen is killed after 5 seconds, with all it started.
        deaf = ("trap '' TERM; if [ $RANK = 2 ]; then kill -9 $$; fi; "
                "sleep 61.77 & wait; sleep 61.77")
        self.run_ranks("bash", "-c", deaf, status=128 + 9)
        self.assertLess(time.monotonic() - start, 20)
        self.assert_none_run("sleep 61.77")
        # Nor does what hides in a session of its own outlive a run.
        self.run_ranks("sh", "-c", "setsid sleep 60.77 > /dev/null 2>&1 & exit 0")
        self.assert_none_run("sleep 60.77")

    def test_the_end_of_time_and_interrupts(self):
        self.up(TWO_HOSTS)
        self.run_ranks("sleep", "62.77", words=["--timeout", "1"], status=124)
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            child = subprocess.Popen([sys.executable, NETLAB, "--lab", LAB, "run", "--", "sh", "-c",
                                      "echo started; sleep 62.77"], stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE)
            self.assertEqual(child.stdout.readline(), b"started\n")
            self.assertIn("another netlab command", netlab("down").stderr)
            child.send_signal(number)
            self.assertIn(b"interrupted", child.communicate(timeout=20)[1])
            self.assertEqual(child.returncode, status)
        self.assert_none_run("sleep 62.77")

    def test_down_ends_what_a_killed_run_left(self):
        self.up(TWO_HOSTS)
        child = subprocess.Popen([sys.executable, NETLAB, "--lab", LAB, "run", "--", "sh", "-c",
                                  "echo started; sleep 63.77; true"], stdout=subprocess.PIPE)
        self.assertEqual(child.stdout.readline(), b"started\n")
        child.kill()
        child.communicate()
        self.assertEqual(netlab("down").returncode, 0)
        self.assertEqual(remains(), [])
        self.assert_none_run("sleep 63.77")

    def test_names_of_others_are_left_alone(self):
        foreign = f"{PREFIX}-h1"
        subprocess.run(["ip", "netns", "add", foreign], check=True)
        try:
            said = self.up(TWO_HOSTS, status=2)
            self.assertIn(f"/run/netns/{foreign} exists already, and no lab", said)
            self.assertEqual(netlab("down").returncode, 0)
            self.assertEqual(remains(), [f"/run/netns/{foreign}"])
        finally:
            subprocess.run(["ip", "netns", "del", foreign], check=True)

    def test_down_after_half_an_up(self):
        path = pathlib.Path(self.folder.name, "mesh.yaml")
        path.write_text(MESH)
        last = f"/run/netns/{PREFIX}-h0"
        child = subprocess.Popen(
            [sys.executable, NETLAB, "--lab", LAB, "up", str(path),
             *(["--meshwright", BINARY] if BINARY else [])], stdout=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while not os.path.exists(last) and child.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
        child.kill()
        self.assertEqual(child.wait(), -signal.SIGKILL)
        self.assertIn("half made", netlab("run", "--", "true").stderr)
        self.assertIn("half made (mesh)", self.up(MESH, status=2))
        self.assertNotEqual(remains(), [])
        self.assertEqual(netlab("down").returncode, 0)
        self.assertEqual(remains(), [])

    def test_bad_input(self):
        for words, message in (
                (["up", "/nowhere.yaml"], "/nowhere.yaml"),
                (["up", "h100:128x1@ib200"], "a lab on one machine has at most 256 in 64"),
                (["up", "gb200-nvl72:1"], "joined with those of other hosts"),
                (["up", "cpu:2", "--share", "0"], "1 to 100 percent"),
                (["up", "cpu:2", "--cpus", "0,77777"], "usable here are"),
                (["run", "--", "true"], "no lab is up"), (["run"], "run what?"),
                (["measure"], "no lab is up"), (["bytes"], "no lab is up"),
                (["measure", "--seconds", "1e9"], "not within"), (["fly"], "invalid choice")):
            more = ["--meshwright", BINARY] if BINARY and words[0] == "up" else []
            done = netlab(*words, *more)
            self.assertEqual(done.returncode, 2, (words, done.stdout + done.stderr))
            self.assertIn(message, done.stderr)
        self.assertEqual(remains(), [])


def main():
    global BINARY
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--binary", help="the meshwright program")
    options, rest = arguments.parse_known_args()
    BINARY = options.binary
    if not sys.platform.startswith("linux"):
        print("skipped: network namespaces are Linux's")
        return SKIPPED
    check = subprocess.run([sys.executable, NETLAB, "check"], capture_output=True, text=True,
                           timeout=60, check=False)
    if check.returncode != 0:
        print("skipped: no lab can be made here:\n" + check.stdout + check.stderr)
        return SKIPPED
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
