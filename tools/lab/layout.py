"""From a cluster to the lab's plan: which switches and hosts there are, and what shapes each link.

Input is what `meshwright clusters FILE --json` prints (docs/cluster_format.md, "For other
programs"). Domains with the same devices are one node of the lab: what leaves a host of one device
passes the device's link and the NIC, so the slower of them counts.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess

from lab.errors import LabError

MAX_HOSTS = 64
MAX_DEVICES = 256
# Above this, a veth pair on a usual machine is slower than what tc would let through.
MAX_SHAPED = 20e9
# From here on the shaped rate is reached only while cores are idle.
MAX_EXACT = 1e9
NETWORK = "10.77.0"


@dataclasses.dataclass
class Node:
    """A host or a switch of the lab. The root has no uplink, so rate 0."""
    name: str             # In the lab: "h0", "s1".
    title: str            # In the cluster: "node0", "pair1".
    parent: int           # Index into Layout.switches, -1 for the root.
    rate: float = 0       # Of the uplink, bit/s per direction; 0 = none, or not shaped.
    latency: float = 0    # Seconds that the file gives to the uplink; the lab cannot make them.
    pair_limit: float = 0  # bit/s that two children of a switch get directly; 0 = switched.
    hosts: tuple = ()     # The hosts below, by index.
    address: str = ""     # Of a host.


@dataclasses.dataclass
class Layout:
    name: str
    hosts: list
    switches: list
    devices: list  # Of dicts: host, local (number within the host), kind, rate (FLOP/s).
    notes: list    # What the file says and the lab does not do.

    def path(self, a, b):
        """What a message from host a to host b passes: links up, links down, and its pair limit."""
        def climb(host):
            nodes = [self.hosts[host]]
            while nodes[-1].parent >= 0:
                nodes.append(self.switches[nodes[-1].parent])
            return nodes
        up, down = climb(a), climb(b)
        while len(up) > 1 and len(down) > 1 and up[-2] is down[-2]:
            up.pop()
            down.pop()
        return up[:-1], down[:-1], up[-1].pair_limit

    def described_rate(self, a, b):
        """bit/s that the file promises from host a to host b; infinite when nothing is shaped."""
        up, down, limit = self.path(a, b)
        return min([n.rate for n in up + down if n.rate] + ([limit] if limit else []),
                   default=float("inf"))

    def described_latency(self, a, b):
        up, down, _ = self.path(a, b)
        return max(sum(n.latency for n in up), sum(n.latency for n in down))


def find_binary(given):
    root = pathlib.Path(__file__).resolve().parents[2]
    for path in (given, os.environ.get("MESHWRIGHT")):
        if path:
            if not os.access(path, os.X_OK):
                raise LabError(f"{path} is no program")
            return path
    built = root / "build/release/bin/meshwright"
    found = str(built) if built.is_file() else shutil.which("meshwright")
    if not found:
        raise LabError("no meshwright program to read cluster files with; build it, or say where: "
                       "--meshwright PATH or the variable MESHWRIGHT")
    return found


def read_cluster(text, binary):
    """The cluster as JSON: from a file that is such JSON, else by the meshwright program."""
    path = pathlib.Path(text)
    if path.suffix == ".json" and path.is_file():
        try:
            cluster = json.loads(path.read_text())
            if isinstance(cluster, dict) and "domains" in cluster:
                return cluster
        except (ValueError, OSError):
            pass  # The program says better what is wrong with it.
    try:
        done = subprocess.run([find_binary(binary), "clusters", text, "--json"], timeout=60,
                              capture_output=True, text=True, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"cannot run meshwright: {error}") from None
    if done.returncode != 0:
        raise LabError(done.stderr.strip().removeprefix("meshwright: error: "))
    return json.loads(done.stdout)


def plan_layout(cluster):
    try:
        return _plan_layout(cluster)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise LabError("the cluster's JSON lacks or garbles what `meshwright clusters FILE --json` "
                       f"prints: {error!r}") from None


def _plan_layout(cluster):
    host_rows, device_rows, domains = cluster["hosts"], cluster["devices"], cluster["domains"]
    if len(host_rows) > MAX_HOSTS or len(device_rows) > MAX_DEVICES:
        raise LabError(f"{cluster['name']} has {len(device_rows)} devices in {len(host_rows)} "
                       f"hosts; a lab on one machine has at most {MAX_DEVICES} in {MAX_HOSTS}")
    notes = {}  # Text -> the domains of which it is true.
    rates = {kind["name"]: kind["fp32"] for kind in cluster["kinds"]}
    devices = [{"host": d["host"], "local": i - host_rows[d["host"]]["first_device"],
                "kind": d["kind"], "rate": rates[d["kind"]]} for i, d in enumerate(device_rows)]

    # One node per set of devices: chains of domains with equal devices fold into their lowest.
    spans = {}
    for domain in domains:
        spans.setdefault((domain["first_device"], domain["device_count"]), []).append(domain)
    host_spans = {(h["first_device"], h["device_count"]): i for i, h in enumerate(host_rows)}
    for span, i in host_spans.items():
        if span not in spans:
            raise LabError(f"the devices of host {host_rows[i]['name']} are joined with those of "
                           "other hosts below the host (joins: devices); the lab joins whole hosts")

    def note(text, domain):
        notes.setdefault(text, []).append(domain["name"])

    def uplink(span):
        chain = [d for d in spans[span] if d["parent"] >= 0]
        rate, latency = float("inf"), sum(d["latency"] for d in chain)
        if span in host_spans:  # From the device on, through all levels inside the host.
            inside = [domains[device_rows[span[0]]["domain"]]]
            while inside[-1]["parent"] >= 0 and inside[-1] is not spans[span][0]:
                inside.append(domains[inside[-1]["parent"]])
            latency = sum(d["latency"] for d in inside)
        for d in chain:
            rate = min(rate, d["uplink"] * 8)
            if 0 < d["lane"] < d["uplink"]:
                if span[1] == 1:
                    rate = min(rate, d["lane"] * 8)
                else:
                    note("one device alone may use all of the uplink, not only its lane of "
                         f"{d['lane'] * 8 / 1e6:g} Mbit/s", d)
        if rate == float("inf"):
            return 0, latency
        if rate > MAX_SHAPED:
            note(f"{rate / 1e9:g} Gbit/s are more than a machine sends to itself, so the link is "
                 "not shaped", chain[0])
            return 0, latency
        if rate > MAX_EXACT:
            note(f"{rate / 1e9:g} Gbit/s are reached only while cores are idle; up to 1 Gbit/s is "
                 "safe", chain[0])
        return rate, latency

    def parent_of(span):
        """The smallest larger span around this one."""
        around = [s for s in spans if s[0] <= span[0] and s[0] + s[1] >= span[0] + span[1]
                  and s[1] > span[1]]
        return min(around, key=lambda s: s[1], default=None)

    inner = sorted((s for s in spans if s not in host_spans and
                    any(h[0] >= s[0] and h[0] + h[1] <= s[0] + s[1] for h in host_spans)),
                   key=lambda s: (-s[1], s[0]))
    switches = [Node(f"s{i}", spans[span][-1]["name"], -1) for i, span in enumerate(inner)]
    hosts = [Node(f"h{i}", h["name"], -1, hosts=(i,), address=f"{NETWORK}.{i + 1}")
             for i, h in enumerate(host_rows)]
    number = {span: i for i, span in enumerate(inner)}
    for span, node in [*zip(inner, switches), *((s, hosts[i]) for s, i in host_spans.items())]:
        around = parent_of(span)
        if around in number:
            node.parent = number[around]
            node.rate, node.latency = uplink(span)
        if span in number:
            node.pair_limit = spans[span][-1]["pair_limit"] * 8
            node.hosts = tuple(i for s, i in host_spans.items()
                               if s[0] >= span[0] and s[0] + s[1] <= span[0] + span[1])
    remarks = [f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {text}"
               for text, names in notes.items()]
    shared = sum(h["device_count"] > 1 for h in host_rows)
    if shared:
        remarks.append(f"devices within a host ({shared} of {len(hosts)} hosts have several) talk "
                       "over loopback as fast as this machine can; links inside a host are not "
                       "shaped")
    if any(n.latency for n in hosts + switches):
        remarks.append("latencies are what this machine has, not the file's; measure shows both")
    return Layout(cluster["name"], hosts, switches, devices, remarks)


def quotas(devices, core_count, fastest):
    """Share of a core per device, and per device its core, or None when the cores do not hold them.

    `fastest` is the share of the fastest kind; None finds the largest at which all devices fit.
    """
    top = max(d["rate"] for d in devices)
    relative = [d["rate"] / top for d in devices]

    def pack(scale):
        free, where = [1.0] * core_count, [0] * len(devices)
        for i in sorted(range(len(devices)), key=lambda i: -relative[i]):
            core = max(range(core_count), key=lambda c: free[c])
            free[core] -= relative[i] * scale
            where[i] = core
            if free[core] < -1e-9:
                return None
        return where

    if fastest is not None:
        return [r * fastest for r in relative], pack(fastest)
    # Steps of 1/1000 keep the shares readable.
    scale = next((s / 1000 for s in range(1000, 0, -1) if pack(s / 1000)), None)
    if scale is None:
        raise LabError(f"{len(devices)} devices do not fit on {core_count} cores")
    return [r * scale for r in relative], pack(scale)
