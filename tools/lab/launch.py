"""Runs one process per device of a lab and supervises them."""

import contextlib
import ctypes
import os
import pathlib
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time

from lab import kernel
from lab.build import INTERFACE
from lab.errors import LabError
from lab.layout import quotas

GRACE_SECONDS = 5
PR_SET_PDEATHSIG = 1
LONGEST_LINE = 1 << 16


def parse_cpus(text):
    """"0-1,4" -> [0, 1, 4], all of them usable by this process."""
    usable = os.sched_getaffinity(0)
    if text is None:
        return sorted(usable)
    cpus = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())
        if not match:
            raise LabError(f"--cpus {text}: a list such as 0,2-3 is meant")
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    if not cpus or not cpus <= usable:
        raise LabError(f"--cpus {text}: usable here are {','.join(map(str, sorted(usable)))}")
    return sorted(cpus)


def rank_order(layout, order):
    """The device of each rank: as the planner numbers them, or by the names of their hosts, as a
    launcher does that knows no wiring."""
    devices = list(range(len(layout["devices"])))
    if order == "names":
        def natural(device):
            title = layout["hosts"][layout["devices"][device]["host"]]["title"]
            words = [word for word in re.split(r"(\d+)", title) if word]
            return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]
        devices.sort(key=lambda d: (natural(d), d))
    return devices


def free_port(namespace):
    """A TCP port nobody uses in the namespace, where only the lab's own processes are."""
    code = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"
    return kernel.ip("netns", "exec", namespace, sys.executable, "-c", code).stdout.strip()


def place(layout, cpus, warn):
    """The core of each device, by share, so that no core holds more than itself."""
    devices = layout["devices"]
    share = max(d["share"] for d in devices)
    if share == 0:
        return [cpus[i % len(cpus)] for i in range(len(devices))]
    _, where = quotas(devices, len(cpus), share)
    if where is None:
        total = sum(d["share"] for d in devices)
        warn(f"the devices' quotas ({total * 100:.0f} % of a core together) do not fit on "
             f"{len(cpus)} cores; slow devices will be slower than described")
        where = [i % len(cpus) for i in range(len(devices))]
    return [cpus[core] for core in where]


class Ranks:
    """The processes of one run."""

    def __init__(self, content, prefix, command, cpus, order="devices", everything=False,
                 warn=lambda text: None):
        layout = content["layout"]
        devices = layout["devices"]
        order = rank_order(layout, order)
        cores = place(layout, cpus, warn)
        master = devices[order[0]]["host"]
        self.everything = everything
        self.cgroups = [d["cgroup"] for d in devices if d["cgroup"]]
        self.children, self.ended = [], {}
        self.first_failure = None
        self.selector = selectors.DefaultSelector()
        shared = dict(os.environ, WORLD_SIZE=str(len(devices)),
                      MASTER_ADDR=layout["hosts"][master]["address"],
                      MASTER_PORT=free_port(f"{prefix}-h{master}"), MESHWRIGHT_INTERFACE=INTERFACE,
                      GLOO_SOCKET_IFNAME=INTERFACE)
        # A device is one core or less.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            shared.setdefault(name, "1")
        per_host = [sum(d["host"] == h for d in devices) for h in range(len(layout["hosts"]))]
        seen = [0] * len(per_host)
        try:
            for rank, number in enumerate(order):
                device = devices[number]
                host = device["host"]
                environment = dict(shared, RANK=str(rank), LOCAL_RANK=str(seen[host]),
                                   LOCAL_WORLD_SIZE=str(per_host[host]))
                seen[host] += 1
                self._start(rank, ["ip", "netns", "exec", f"{prefix}-h{host}", *command],
                            environment, device["cgroup"], cores[number])
        except OSError as error:
            self.stop()
            raise LabError(f"cannot start rank {len(self.children)}: {error}") from None

    def _start(self, rank, command, environment, cgroup, core):
        libc = ctypes.CDLL(None, use_errno=True)

        def prepare():
            # A rank must not outlive a netlab that was killed.
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.sched_setaffinity(0, {core})
            if cgroup:
                with open(pathlib.Path(cgroup, "cgroup.procs"), "w", encoding="ascii") as file:
                    file.write("0")

        quiet = subprocess.PIPE if self.everything else subprocess.DEVNULL
        child = subprocess.Popen(command, env=environment, preexec_fn=prepare,
                                 start_new_session=True, stdin=subprocess.DEVNULL,
                                 stdout=None if rank == 0 else quiet,
                                 stderr=None if rank == 0 else subprocess.PIPE)
        self.children.append(child)
        self.selector.register(os.pidfd_open(child.pid), selectors.EVENT_READ, ("end", rank, None))
        for pipe in (child.stdout, child.stderr):
            if pipe:
                os.set_blocking(pipe.fileno(), False)
                self.selector.register(pipe, selectors.EVENT_READ, ("text", rank, bytearray()))

    def wait(self, timeout):
        """Passes output on until all ranks have ended; exit code of the first that failed, or 0.
        124 when the time is over."""
        until = time.monotonic() + timeout
        while len(self.ended) < len(self.children):
            left = until - time.monotonic()
            if left <= 0:
                print(f"netlab: not done after {timeout:g} s; ending all ranks", file=sys.stderr)
                self.stop()
                return 124
            self._pass_events(left)
            if self.first_failure is not None:
                rank, code = self.first_failure
                if len(self.ended) < len(self.children):
                    print(f"netlab: rank {rank} ended with {code}; ending the others",
                          file=sys.stderr)
                self.stop()
                return code
        self.stop()  # Whatever the ranks left behind in their groups.
        return 0

    def _pass_events(self, seconds):
        for key, _ in self.selector.select(seconds):
            what, rank, text = key.data
            if what == "text":
                self._pass_text(key, rank, text)
                continue
            code = self.children[rank].wait()
            self.ended[rank] = code = code if code >= 0 else 128 - code
            if code != 0 and self.first_failure is None:
                self.first_failure = (rank, code)
            self.selector.unregister(key.fileobj)
            os.close(key.fd)

    def _pass_text(self, key, rank, text):
        try:
            chunk = os.read(key.fd, 65536)
        except BlockingIOError:
            return
        text += chunk
        if not chunk:
            self.selector.unregister(key.fileobj)
        whole = text.rfind(b"\n") + 1
        if not chunk or len(text) - whole > LONGEST_LINE:
            whole = len(text)
        for line in bytes(text[:whole]).splitlines():
            sys.stderr.buffer.write(b"[rank %d] %s\n" % (rank, line))
        sys.stderr.buffer.flush()
        del text[:whole]

    def stop(self):
        """Ends every rank and what it started: SIGTERM, and SIGKILL after some seconds."""
        self._signal(signal.SIGTERM)
        until = time.monotonic() + GRACE_SECONDS
        try:
            while len(self.ended) < len(self.children) and time.monotonic() < until:
                self._pass_events(until - time.monotonic())
        finally:  # Also when a second Ctrl-C comes.
            self._signal(signal.SIGKILL)
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
        until = time.monotonic() + 1  # Last words; a process that left its group may hold the pipe.
        while self.selector.get_map() and time.monotonic() < until:
            self._pass_events(0.05)
        self.selector.close()

    def _signal(self, number):
        for child in self.children:
            try:
                os.killpg(child.pid, number)
            except ProcessLookupError:
                pass
        if number == signal.SIGKILL:  # Also what has left its rank's process group.
            for cgroup in self.cgroups:
                kernel.end_cgroup(cgroup)


def run(content, prefix, command, options, warn):
    """The exit code of `command`, run once per device."""
    if shutil.which(command[0]) is None:
        raise LabError(f"{command[0]} is no program")

    def interrupt(number, _frame):
        raise KeyboardInterrupt(number)

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    ranks = Ranks(content, prefix, command, parse_cpus(options.cpus), options.order,
                  options.all_output, warn)
    try:
        return ranks.wait(options.timeout)
    except KeyboardInterrupt as error:
        print("netlab: interrupted; ending all ranks", file=sys.stderr)
        ranks.stop()
        return 128 + (error.args[0] if error.args else signal.SIGINT)
