"""Makes a lab and removes it."""

import dataclasses
import os
import pathlib
import re
import signal
import time

from lab import kernel
from lab.errors import LabError
from lab.layout import plan_layout, quotas

INTERFACE = "mw0"  # Of every host.


def require_root():
    if os.geteuid() != 0:
        raise LabError("a lab needs root, for namespaces and cgroups; use sudo")


def refuse_foreign(prefix):
    """Things of the lab's names that no state file lists are someone else's."""
    pattern = re.compile(re.escape(prefix) + r"-[hsd]\d+")
    places = [kernel.NAMESPACES]
    root, _ = kernel.cgroup_root()
    if root:
        places.append(root)
    found = sorted(str(path) for place in places if place.is_dir() for path in place.iterdir()
                   if pattern.fullmatch(path.name))
    if found:
        raise LabError(f"{', '.join(found[:4])} exist{'s' if len(found) == 1 else ''} already, and "
                       "no lab that is known made that; remove it by hand (ip netns del, rmdir) or "
                       "choose other names: --lab NAME")


def up(state, cluster, core_count, share):
    """Makes the lab of `cluster`; `share` is the fastest kind's share of a core, None = the largest
    that fits, 0 = no quotas. Undoes everything on failure."""
    require_root()
    lacking = [f"{what}: {remark}" for what, good, remark, needed in kernel.probe()
               if needed and not good]
    if lacking:
        raise LabError("this machine cannot make a lab: " + "; ".join(lacking))
    layout = plan_layout(cluster)
    if state.load():
        what = "up already" if state.content.get("complete") else "half made"
        raise LabError(f"a lab is {what} ({state.content.get('cluster')}); remove it: "
                       "tools/netlab down")
    refuse_foreign(state.prefix)
    state.content = {"version": 1, "cluster": layout.name, "complete": False, "made": [],
                     "layout": dataclasses.asdict(layout)}
    state.save()
    try:
        _make_network(state, layout)
        _make_cgroups(state, layout, core_count, share)
    except BaseException:
        down(state)
        raise
    state.content["layout"] = dataclasses.asdict(layout)
    state.content["complete"] = True
    state.save()
    return layout


def _make_network(state, layout):
    def namespace(node):
        return f"{state.prefix}-{node.name}"

    for node in layout.switches + layout.hosts:
        state.note("netns", namespace(node))
        kernel.ip("netns", "add", namespace(node))
        for line in ("net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"):
            kernel.ip("netns", "exec", namespace(node), "sysctl", "-q", "-w", line, check=False)
        kernel.ip("-n", namespace(node), "link", "set", "lo", "up")
    for node in layout.switches:
        kernel.ip("-n", namespace(node), "link", "add", "br0", "type", "bridge")
        kernel.ip("-n", namespace(node), "link", "set", "br0", "up")
    for node in layout.switches + layout.hosts:
        if node.parent >= 0:
            _connect(layout, node, namespace(node), namespace(layout.switches[node.parent]))
    for node in layout.switches + layout.hosts:
        kernel.keep_order(namespace(node))
    for host in layout.hosts:
        state.content["congestion_control"] = _settle_host(layout, host, namespace(host))


def _connect(layout, node, inside, outside):
    """A cable from the node to its switch, shaped at both ends."""
    is_host = node.address != ""
    near, far = INTERFACE if is_host else "up0", node.name
    kernel.ip("link", "add", near, "netns", inside, "type", "veth", "peer", "name", far, "netns",
              outside)
    if is_host:
        kernel.ip("-n", inside, "link", "set", near, "address", _mac(node.hosts[0]))
        kernel.ip("-n", inside, "addr", "add", f"{node.address}/24", "dev", near)
    else:
        kernel.ip("-n", inside, "link", "set", near, "master", "br0")
    kernel.ip("-n", outside, "link", "set", far, "master", "br0")
    kernel.ip("-n", inside, "link", "set", near, "up")
    kernel.ip("-n", outside, "link", "set", far, "up")
    limit = layout.switches[node.parent].pair_limit
    if limit:
        siblings = [n for n in layout.switches + layout.hosts
                    if n.parent == node.parent and n is not node]
        kernel.shape_pairs(inside, near, node.rate, limit,
                           [[layout.hosts[h].address for h in n.hosts] for n in siblings])
    else:
        kernel.shape(inside, near, node.rate, len(layout.hosts))
    kernel.shape(outside, far, node.rate, len(layout.hosts))


def _mac(host):
    return f"02:77:00:00:00:{host + 1:02x}"


def _settle_host(layout, host, namespace):
    # Known neighbours: no ARP, so that all that is sent is the run's own traffic.
    for other in layout.hosts:
        if other is not host and host.parent >= 0:
            kernel.ip("-n", namespace, "neigh", "replace", other.address, "lladdr",
                      _mac(other.hosts[0]), "dev", INTERFACE, "nud", "permanent")
    # A training step sends in bursts: each must not start slowly again. Nothing is lost here, so
    # nothing is to be sent again on suspicion.
    for line in ("net.ipv4.tcp_slow_start_after_idle=0", "net.ipv4.tcp_no_metrics_save=1",
                 "net.ipv4.tcp_early_retrans=0"):
        kernel.ip("netns", "exec", namespace, "sysctl", "-q", "-w", line, check=False)
    if host.parent < 0:  # The only host: nothing to connect to, but its address exists.
        kernel.ip("-n", namespace, "addr", "add", f"{host.address}/24", "dev", "lo")
    kernel.limit_windows(namespace)
    return kernel.set_congestion_control(namespace)


def _make_cgroups(state, layout, core_count, share):
    for device in layout.devices:
        device["cgroup"], device["share"] = "", 0
    root, version = kernel.cgroup_root()
    if root is None:
        layout.notes.append(f"devices are not slowed down: {version}")
        return
    shares = [0] * len(layout.devices)
    if share != 0:
        shares, _ = quotas(layout.devices, core_count, share)
    for i, device in enumerate(layout.devices):
        if share != 0 and shares[i] < 0.002:
            raise LabError(f"device {i} ({device['kind']}) would get {shares[i] * 100:.3f} % of a "
                           "core; the kernel's least is 0.2 %")
        path = root / f"{state.prefix}-d{i}"
        state.note("cgroup", str(path))
        kernel.make_cgroup(path, version, shares[i])
        device["cgroup"], device["share"] = str(path), shares[i]


def down(state):
    """Removes what the state lists, whatever of it exists; processes in its namespaces end first.
    """
    namespaces = [name for kind, name in state.content["made"] if kind == "netns"]
    _end_processes(namespaces)
    left = []
    for kind, name in reversed(state.content["made"]):
        try:
            _remove(kind, name)
        except (LabError, OSError) as error:
            left.append(str(error))
    if left:
        raise LabError("not all of the lab could be removed, try again: " + "; ".join(left))
    state.remove()


def _remove(kind, name):
    if kind == "netns":
        if (kernel.NAMESPACES / name).exists():
            kernel.ip("netns", "del", name)
    elif kind == "cgroup":
        path = pathlib.Path(name)
        for _ in range(50):  # Processes that have just ended leave a cgroup a moment later.
            try:
                path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)
        path.rmdir()


def _end_processes(namespaces):
    for number, wait in ((signal.SIGTERM, 2), (signal.SIGKILL, 2)):
        pids = [pid for name in namespaces if (kernel.NAMESPACES / name).exists()
                for pid in kernel.processes_in(name)]
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        until = time.monotonic() + wait
        while time.monotonic() < until and any(pathlib.Path(f"/proc/{p}").exists() for p in pids):
            time.sleep(0.05)
