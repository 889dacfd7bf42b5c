"""What a lab's links and devices really do, beside what the cluster file says."""

import contextlib
import json
import os
import pathlib
import select
import socket
import struct
import subprocess
import sys
import time

from lab import kernel
from lab.build import INTERFACE
from lab.errors import LabError
from lab.layout import Layout, Node

PINGS = 100
# Of a measurement, the beginning that is not counted: the burst that passes unshaped and the
# sender's slow start.
WARM_UP = 0.25
SAMPLE_SECONDS = 0.01
# Layers 2 to 4 of a TCP segment over IPv4 with time stamps, and what a SYN has more.
HEADERS, SYN_EXTRA = 66, 8


def layout_of(content):
    stored = content["layout"]
    return Layout(stored["name"], [Node(**n) for n in stored["hosts"]],
                  [Node(**n) for n in stored["switches"]], stored["devices"], stored["notes"])


# --- inside a namespace: started as `tools/netlab _probe ROLE ...` --------------------------------

def probe_main(role, *words):
    {"receive": _receive, "send": _send, "echo": _echo, "ping": _ping, "spin": _spin}[role](*words)


def _listen():
    listener = socket.create_server(("", 0))
    print(listener.getsockname()[1], flush=True)
    listener.settimeout(20)
    connection, _ = listener.accept()
    connection.settimeout(20)
    return connection


def _receive(seconds):
    """Prints [[time, payload bytes so far], ...] of one connection. The clock is the machine's, so
    that flows can be compared."""
    connection, seconds = _listen(), float(seconds)
    buffer = bytearray(1 << 18)
    count = connection.recv_into(buffer)
    start = now = time.monotonic()
    samples = [[start, count]]
    while now < start + seconds:
        got = connection.recv_into(buffer)
        if got == 0:
            break
        count += got
        now = time.monotonic()
        if now >= samples[-1][0] + SAMPLE_SECONDS:
            samples.append([now, count])
    print(json.dumps(samples))


def _send(address, port, seconds):
    connection = socket.create_connection((address, int(port)), timeout=20)
    block, until = bytes(1 << 18), time.monotonic() + float(seconds) + 5
    with contextlib.suppress(ConnectionError, TimeoutError):  # The receiver hangs up when done.
        while time.monotonic() < until:
            connection.sendall(block)


def _echo():
    connection = _listen()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while got := connection.recv(8):
        connection.sendall(got)


def _ping(address, port):
    """Prints half of the median round trip of 8 bytes, in seconds."""
    connection = socket.create_connection((address, int(port)), timeout=20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for i in range(PINGS):
        start = time.perf_counter()
        connection.sendall(struct.pack("d", i))
        connection.recv(8)
        times.append(time.perf_counter() - start)
    print(sorted(times)[PINGS // 2] / 2)


def _spin(seconds):
    """Prints the share of a core that a busy process gets."""
    start, cpu = time.monotonic(), time.process_time()
    while time.monotonic() < start + float(seconds):
        pass
    print((time.process_time() - cpu) / (time.monotonic() - start))


# --- outside --------------------------------------------------------------------------------------

class Probes:
    """Starts probes in namespaces and ends them all at the end."""

    def __init__(self, prefix):
        self.prefix, self.started = prefix, []

    @staticmethod
    def command(prefix, host, *words):
        script = str(pathlib.Path(__file__).resolve().parents[1] / "netlab")
        return ["ip", "netns", "exec", f"{prefix}-{host.name}", sys.executable, script, "_probe",
                *map(str, words)]

    def start(self, host, *words):
        child = subprocess.Popen(self.command(self.prefix, host, *words), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(child)
        return child

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.started:
            child.kill()
            child.communicate()


def _line(child, seconds=20):
    if not select.select([child.stdout], [], [], seconds)[0]:
        raise LabError(f"a measurement did not answer within {seconds:g} s")
    line = child.stdout.readline()
    if not line:
        raise LabError(f"a measurement failed: {child.communicate()[1].strip()[-300:]}")
    return line.strip()


def rates(prefix, layout, pairs, seconds):
    """Payload bit/s of each (from, to) over the time in which all of them send."""
    with Probes(prefix) as probes:
        receivers = [probes.start(layout.hosts[b], "receive", seconds) for _, b in pairs]
        ports = [_line(child) for child in receivers]
        for (a, b), port in zip(pairs, ports):
            probes.start(layout.hosts[a], "send", layout.hosts[b].address, port, seconds)
        logs = [json.loads(_line(child, seconds + 30)) for child in receivers]
    start = max(log[0][0] for log in logs)
    end = min(log[-1][0] for log in logs)
    start += WARM_UP * max(0, end - start)
    return [_rate_between(log, start, end) for log in logs]


def _rate_between(log, start, end):
    inside = [sample for sample in log if start <= sample[0] <= end]
    if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
        return 0
    return (inside[-1][1] - inside[0][1]) * 8 / (inside[-1][0] - inside[0][0])


def latency(prefix, layout, a, b):
    """Seconds from host a to host b for a few bytes, as a process sees it."""
    with Probes(prefix) as probes:
        port = _line(probes.start(layout.hosts[b], "echo"))
        ping = probes.start(layout.hosts[a], "ping", layout.hosts[b].address, port)
        return float(_line(ping, 60))


def pair_classes(layout):
    """Ordered pairs of hosts with equal links between them: a list of lists."""
    classes = {}
    for a in range(len(layout.hosts)):
        for b in range(len(layout.hosts)):
            if a != b:
                up, down, limit = layout.path(a, b)
                key = (tuple((n.rate, n.latency) for n in up),
                       tuple((n.rate, n.latency) for n in down), limit)
                classes.setdefault(key, []).append((a, b))
    return list(classes.values())


def trunk_flows(layout, switch):
    """Every host below the switch sends to another one outside: the flows that share its uplink."""
    outside = [h for h in range(len(layout.hosts)) if h not in switch.hosts]
    return [(a, outside[i % len(outside)]) for i, a in enumerate(switch.hosts)]


def links(prefix, layout, seconds, every_pair):
    """A row per class of pairs (or per pair), and per trunk when all hosts behind it send."""
    rows = []
    for pairs in pair_classes(layout):
        for a, b in pairs if every_pair else pairs[:1]:
            described = layout.described_rate(a, b)
            rows.append({"what": f"{layout.hosts[a].title} -> {layout.hosts[b].title}",
                         "alike": 1 if every_pair else len(pairs),
                         "described": 0 if described == float("inf") else described,
                         "measured": rates(prefix, layout, [(a, b)], seconds)[0],
                         "described_latency": layout.described_latency(a, b),
                         "measured_latency": latency(prefix, layout, a, b)})
    for switch in layout.switches:
        if switch.parent >= 0 and switch.rate and len(switch.hosts) > 1:
            flows = trunk_flows(layout, switch)
            got = rates(prefix, layout, flows, seconds)
            most = sum(layout.hosts[h].rate or switch.rate for h in switch.hosts)
            rows.append({"what": f"out of {switch.title}, {len(flows)} at once", "alike": 1,
                         "described": min(switch.rate, most), "measured": sum(got), "flows": got})
    return rows


def devices(prefix, layout, seconds, cores):
    """A row per device: the share of a core that it gets while all are busy."""
    children = []
    for device, core in zip(layout.devices, cores):
        def prepare(cgroup=device["cgroup"], core=core):
            os.sched_setaffinity(0, {core})
            if cgroup:
                pathlib.Path(cgroup, "cgroup.procs").write_text("0", encoding="ascii")
        command = Probes.command(prefix, layout.hosts[device["host"]], "spin", seconds)
        children.append(subprocess.Popen(command, preexec_fn=prepare, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True))
    try:
        return [{"kind": device["kind"], "core": core, "share": device["share"],
                 "measured": float(_line(child, seconds + 20))}
                for device, core, child in zip(layout.devices, cores, children)]
    finally:
        for child in children:
            child.kill()
            child.communicate()


# --- counters -------------------------------------------------------------------------------------

def _counters(namespace, interface):
    """Bytes and packets that have left and reached an interface."""
    done = kernel.ip("-n", namespace, "-s", "-j", "link", "show", "dev", interface)
    stats = json.loads(done.stdout)[0]["stats64"]
    return {"sent_bytes": stats["tx"]["bytes"], "sent_packets": stats["tx"]["packets"],
            "received_bytes": stats["rx"]["bytes"], "received_packets": stats["rx"]["packets"]}


def _tcp(namespace):
    """TCP's own counters of a namespace."""
    lines = kernel.ip("netns", "exec", namespace, "cat", "/proc/net/snmp").stdout.splitlines()
    names, values = [line.split()[1:] for line in lines if line.startswith("Tcp:")]
    tcp = dict(zip(names, map(int, values)))
    return {"opened": tcp["ActiveOpens"] + tcp["PassiveOpens"], "resent": tcp["RetransSegs"]}


def counters(prefix, layout):
    """Per host and per trunk what it has sent and received since `up`."""
    rows = {}
    for host in layout.hosts:
        if host.parent >= 0:
            namespace = f"{prefix}-{host.name}"
            rows[host.name] = {**_counters(namespace, INTERFACE), **_tcp(namespace)}
    for switch in layout.switches:
        if switch.parent >= 0:
            rows[switch.name] = _counters(f"{prefix}-{switch.name}", "up0")
    return rows


def difference(after, before):
    return {name: {key: value - before.get(name, {}).get(key, 0) for key, value in row.items()}
            for name, row in after.items()}


def add_payload(rows):
    """Adds what of the bytes was TCP payload. Exact while nothing is resent: all packets then have
    equal headers but for those that open a connection."""
    for row in rows.values():
        if "opened" in row:
            row["sent_payload"] = max(
                0, row["sent_bytes"] - HEADERS * row["sent_packets"] - SYN_EXTRA * row["opened"])
    return rows
