"""What the lab asks of the kernel: namespaces, links, shaping, cgroups; and probes of each."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess

from lab.errors import LabError

NAMESPACES = pathlib.Path("/run/netns")
CGROUP_PERIOD_US = 10000
# What one connection may have under way: more than any link here holds, and so little that no queue
# becomes long.
WINDOW_BYTES = 1 << 19


def call(*words, check=True):
    """Runs a command; its error text becomes the LabError's."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{' '.join(words)}: {error}") from None
    if check and done.returncode != 0:
        raise LabError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done


def ip(*words, check=True):
    return call("ip", *words, check=check)


def tc(namespace, *words, check=True):
    return call("tc", "-n", namespace, *words, check=check)


def burst(rate):
    """Bytes that may pass unshaped at `rate` bit/s. Small, so that small messages are shaped too;
    but a fast link needs room for the 64 KB packets that the kernel sends (measured: at 1 Gbit/s a
    burst of 64 KB reaches a third of the rate)."""
    return 16384 if rate <= 200e6 else max(262144, int(rate / 8 * 0.004))


def queue(hosts):
    """Bytes that wait in front of a link: as much as `hosts` can have under way, so that nothing is
    lost. A loss of the last packets of a message would cost TCP a timeout of 200 ms, and flows that
    lose nothing share a link equally."""
    return (hosts + 4) * 2 * WINDOW_BYTES


def shape(namespace, device, rate, hosts):
    """Limits what leaves `device` to `rate` bit/s, headers of layer 2 included."""
    if rate:
        tc(namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{int(rate)}bit",
           "burst", str(burst(rate)), "limit", str(queue(hosts)))


def shape_pairs(namespace, device, rate, limit, destinations):
    """As shape(), and each list of addresses in `destinations` gets at most `limit` bit/s."""
    # Without a rate of its own the device has room for all its pairs at once.
    rate = rate or limit * len(destinations)
    limit = min(limit, rate)

    def add_class(number, parent, guaranteed, most):
        tc(namespace, "class", "add", "dev", device, "parent", parent, "classid", f"1:{number:x}",
           "htb", "rate", f"{int(guaranteed)}bit", "ceil", f"{int(most)}bit", "burst",
           str(burst(most)), "cburst", str(burst(most)), "quantum", "15140")

    tc(namespace, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "2")
    add_class(1, "1:", rate, rate)
    # A class may always send at its guaranteed rate, so those must not add up to more than the
    # link.
    guaranteed = min(limit, rate / (len(destinations) + 1))
    add_class(2, "1:1", guaranteed, rate)
    for i, addresses in enumerate(destinations):
        number = 16 + i
        add_class(number, "1:1", guaranteed, limit)
        tc(namespace, "qdisc", "add", "dev", device, "parent", f"1:{number:x}", "pfifo", "limit",
           "4000")
        for address in addresses:
            tc(namespace, "filter", "add", "dev", device, "parent", "1:", "protocol", "ip", "prio",
               "1", "u32", "match", "ip", "dst", f"{address}/32", "flowid", f"1:{number:x}")


def keep_order(namespace):
    """Makes each flow's packets pass one core's queue. Else those of one flow overtake one another
    on their way through several cores, and TCP sends them again. Call it when all links are made.
    """
    cores = sum(1 << core for core in os.sched_getaffinity(0) if core < 32) or 1
    ip("netns", "exec", namespace, "sh", "-c",
       f"for f in /sys/class/net/*/queues/rx-*/rps_cpus; do echo {cores:x} > $f; done", check=False)


def limit_windows(namespace):
    for name, usual in (("tcp_rmem", 131072), ("tcp_wmem", 65536)):
        ip("netns", "exec", namespace, "sysctl", "-q", "-w",
           f"net.ipv4.{name}=4096 {usual} {WINDOW_BYTES}", check=False)


def set_congestion_control(namespace):
    """Cubic or reno, which keep to a shaped rate more tightly than bbr. Returns its name."""
    for name in ("cubic", "reno"):
        # A namespace may only choose what the machine allows to everybody.
        if ip("netns", "exec", namespace, "sysctl", "-q", "-w",
              f"net.ipv4.tcp_congestion_control={name}", check=False).returncode == 0:
            return name
    return ip("netns", "exec", namespace, "sysctl", "-n",
              "net.ipv4.tcp_congestion_control").stdout.strip()


def cgroup_root():
    """Where CPU cgroups are made and their version (1 or 2); (None, why) when nowhere."""
    second = None
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(","):
            return pathlib.Path(place), 1
        if kind == "cgroup2":
            second = pathlib.Path(place)
    if second is None:
        return None, "no cgroup file system is mounted"
    try:
        enabled = (second / "cgroup.subtree_control").read_text().split()
    except OSError as error:
        return None, str(error)
    if "cpu" not in enabled:
        return None, f"the cpu controller is not enabled in {second}/cgroup.subtree_control"
    return second, 2


def make_cgroup(path, version, share):
    """A cgroup whose processes together get `share` of one core; 0 = as much as there is."""
    path.mkdir()
    weight = share or 1
    # The kernel takes no quota under 1 ms.
    period = min(1000000, max(CGROUP_PERIOD_US, int(1000 / weight) + 1))
    amount = max(1000, round(period * weight))
    # What else runs on the machine should not make devices slower; their quota keeps them modest.
    if version == 1:
        if share:
            (path / "cpu.cfs_period_us").write_text(str(period))
            (path / "cpu.cfs_quota_us").write_text(str(amount))
        (path / "cpu.shares").write_text(str(max(2, round(102400 * weight))))
    else:
        if share:
            (path / "cpu.max").write_text(f"{amount} {period}")
        (path / "cpu.weight").write_text(str(max(1, round(10000 * weight))))


def end_cgroup(path):
    """Kills what runs in a cgroup."""
    with contextlib.suppress(OSError):
        for pid in (pathlib.Path(path) / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def processes_in(namespace):
    found = ip("netns", "pids", namespace, check=False)
    return [int(word) for word in found.stdout.split()] if found.returncode == 0 else []


@contextlib.contextmanager
def _probe_namespace():
    name = f"mwlab-probe-{os.getpid()}"
    ip("netns", "add", name)
    try:
        yield name
    finally:
        ip("netns", "del", name, check=False)


def _probe_cgroup():
    root, version = cgroup_root()
    if root is None:
        return False, version
    path = root / f"mwlab-probe-{os.getpid()}"
    try:
        make_cgroup(path, version, 0.5)
    except OSError as error:
        return False, str(error)
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()
    return True, f"version {version} at {root}"


def probe():
    """Lines of (what, has it, remark, needed): what a lab needs, then what would be good."""
    lines = []

    def add(what, good, remark="", needed=True):
        lines.append((what, good, remark, needed))
        return good

    root = add("root", os.geteuid() == 0,
               "" if os.geteuid() == 0 else "network namespaces and cgroups need root; use sudo")
    tools = [add(tool, shutil.which(tool) is not None, shutil.which(tool) or
                 f"not installed; it comes with {package}")
             for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("sysctl", "procps"))]
    if root and all(tools):
        try:
            with _probe_namespace() as name:
                add("network namespaces", True)
                _probe_links(name, add)
        except LabError as error:
            add("network namespaces", False, str(error))
    good, remark = _probe_cgroup()
    add("cgroup cpu quota", good, remark + ("" if good else "; devices are not slowed down"),
        needed=False)
    flag = pathlib.Path("/proc/sys/user/max_user_namespaces")
    allowed = flag.is_file() and flag.read_text().strip() != "0"
    add("user namespaces", allowed, "not used: the lab works as root", needed=False)
    return lines


def _probe_links(name, add):
    if not add("veth", *_tried(ip("-n", name, "link", "add", "v0", "type", "veth", "peer", "v1",
                                  check=False))):
        return
    add("bridge", *_tried(ip("-n", name, "link", "add", "v2", "type", "bridge", check=False)))

    def qdisc(*words):
        done = tc(name, "qdisc", "add", "dev", "v0", "root", *words, check=False)
        return _tried(done)

    add("tc tbf", *qdisc("tbf", "rate", "1mbit", "burst", "16384", "limit", "65536"))
    tc(name, "qdisc", "del", "dev", "v0", "root", check=False)
    good, remark = qdisc("handle", "1:", "htb", "default", "2")
    if good:
        good, remark = _tried(tc(name, "filter", "add", "dev", "v0", "parent", "1:", "protocol",
                                 "ip", "u32", "match", "ip", "dst", "10.77.0.1/32", "flowid", "1:2",
                                 check=False))
    add("tc htb with u32", good, remark or "for limits between pairs (pair_limit)", needed=False)
    tc(name, "qdisc", "del", "dev", "v0", "root", check=False)
    good, _ = qdisc("netem", "delay", "1ms")
    add("tc netem", good, "not used" if good else "not in this kernel: latencies cannot be made",
        needed=False)
    control = set_congestion_control(name)
    add("TCP cubic or reno", control in ("cubic", "reno"), f"{control} is used", needed=False)


def _tried(done):
    return done.returncode == 0, "; ".join(done.stderr.strip().splitlines()[:1])
