#!/usr/bin/env python3
"""From clusters to the plan of a lab, without making one."""

import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

# pylint: disable=wrong-import-position
from lab import build, kernel
from lab.errors import LabError
from lab.launch import parse_cpus, place, rank_order
from lab.layout import plan_layout, quotas, read_cluster
from lab.measure import pair_classes, trunk_flows

MEGABIT = 1e6 / 8


def domain(name, parent, first, count, uplink=0.0, **more):
    return {"name": name, "parent": parent, "first_device": first, "device_count": count,
            "uplink": uplink, "lane": 0.0, "latency": 0.0, "pair_limit": 0.0, **more}


def two_pairs(devices=1, **spine):
    """Two pairs of hosts with `devices` each: NICs of 500 Mbit/s, a trunk of 50 Mbit/s per pair."""
    domains = [domain("spine", -1, 0, 4 * devices, **spine)]
    for pair in range(2):
        trunk = len(domains)
        domains.append(domain(f"pair{pair}", 0, 2 * pair * devices, 2 * devices, 50 * MEGABIT,
                              latency=40e-6))
        for host in (2 * pair, 2 * pair + 1):
            nic = len(domains)
            domains.append(domain(f"n{host}", trunk, host * devices, devices, 500 * MEGABIT,
                                  latency=100e-6))
            domains += [domain(f"d{host * devices + d}", nic, host * devices + d, 1, 5e9,
                               latency=5e-6)
                        for d in range(devices)]
    return {"name": "two",
            "kinds": [{"name": "core", "fp32": 8e10}, {"name": "slow", "fp32": 2e10}],
            "hosts": [{"name": f"n{h}", "first_device": h * devices, "device_count": devices}
                      for h in range(4)],
            "devices": [{"kind": "slow" if d == 1 else "core", "host": d // devices,
                         "domain": [row["name"] for row in domains].index(f"d{d}")}
                        for d in range(4 * devices)],
            "domains": domains}


class Plan(unittest.TestCase):
    def test_switches_and_rates(self):
        layout = plan_layout(two_pairs())
        self.assertEqual([(s.title, s.parent, s.rate) for s in layout.switches],
                         [("spine", -1, 0), ("pair0", 0, 50e6), ("pair1", 0, 50e6)])
        self.assertEqual([(h.address, h.parent, h.rate) for h in layout.hosts],
                         [("10.77.0.1", 1, 500e6), ("10.77.0.2", 1, 500e6),
                          ("10.77.0.3", 2, 500e6), ("10.77.0.4", 2, 500e6)])
        self.assertEqual(layout.described_rate(0, 1), 500e6)
        self.assertEqual(layout.described_rate(0, 3), 50e6)
        self.assertAlmostEqual(layout.described_latency(0, 3), 145e-6)
        self.assertEqual([len(pairs) for pairs in pair_classes(layout)], [4, 8])
        self.assertEqual(trunk_flows(layout, layout.switches[1]), [(0, 2), (1, 3)])

    def test_limits_of_pairs(self):
        layout = plan_layout(two_pairs(pair_limit=20 * MEGABIT))
        self.assertEqual(layout.switches[0].pair_limit, 20e6)
        self.assertEqual(layout.described_rate(0, 3), 20e6)
        self.assertEqual(layout.described_rate(0, 1), 500e6)

    def test_slow_link_of_the_only_device_counts(self):
        cluster = two_pairs()
        cluster["domains"][3]["uplink"] = 10 * MEGABIT
        self.assertEqual(plan_layout(cluster).described_rate(0, 1), 10e6)

    def test_latencies_begin_at_a_device(self):
        layout = plan_layout(two_pairs(devices=2))
        self.assertAlmostEqual(layout.described_latency(0, 1), 105e-6)

    def test_lanes_are_left_out_and_said(self):
        cluster = two_pairs(devices=2)
        cluster["domains"][2]["lane"] = 100 * MEGABIT
        notes = " ".join(plan_layout(cluster).notes)
        self.assertIn("n0: one device alone may use all of the uplink, not only its lane of 100 M",
                      notes)
        self.assertIn("links inside a host are not shaped", notes)

    def test_links_beyond_the_machine_are_not_shaped(self):
        cluster = two_pairs()
        for row in cluster["domains"][1:]:
            row["uplink"] = 50e9
        layout = plan_layout(cluster)
        self.assertEqual({n.rate for n in layout.hosts + layout.switches}, {0})
        self.assertIn("pair0 and 5 more: 400 Gbit/s are more than a machine sends to itself",
                      " ".join(layout.notes))

    def test_one_host_alone(self):
        cluster = two_pairs()
        cluster["domains"] = [domain("n0", -1, 0, 1), domain("d0", 0, 0, 1, 5e9)]
        cluster["hosts"], cluster["devices"] = cluster["hosts"][:1], cluster["devices"][:1]
        cluster["devices"][0]["domain"] = 1
        layout = plan_layout(cluster)
        self.assertEqual((layout.switches, layout.hosts[0].parent), ([], -1))

    def test_devices_joined_across_hosts_are_refused(self):
        cluster = two_pairs(devices=2)
        for row in cluster["domains"]:  # The switch of devices 2 and 3 takes device 1 in.
            if row["name"] == "n1":
                row.update(first_device=1, device_count=3)
        with self.assertRaisesRegex(LabError, "host n1 are joined with those of other hosts"):
            plan_layout(cluster)

    def test_too_many_hosts(self):
        cluster = two_pairs()
        cluster["hosts"] *= 100
        with self.assertRaisesRegex(LabError, "4 devices in 400 hosts; a lab .* at most 256 in 64"):
            plan_layout(cluster)

    def test_garbled_json(self):
        with self.assertRaisesRegex(LabError, "lacks or garbles"):
            plan_layout({"domains": []})


class Shares(unittest.TestCase):
    def devices(self, *rates):
        return [{"rate": rate} for rate in rates]

    def test_the_largest_that_fits(self):
        self.assertEqual(quotas(self.devices(4, 2, 1, 1), 2, None),
                         ([1, .5, .25, .25], [0, 1, 1, 1]))
        self.assertEqual(quotas(self.devices(1, 1, 1, 1), 2, None)[0], [.5] * 4)
        # Three alike on two cores: two must share one.
        self.assertEqual(quotas(self.devices(1, 1, 1), 2, None)[0], [.5] * 3)

    def test_a_given_share(self):
        shares, where = quotas(self.devices(4, 1), 1, 0.5)
        self.assertEqual((shares, where), ([.5, .125], [0, 0]))
        self.assertIsNone(quotas(self.devices(1, 1), 1, 0.75)[1])

    def test_cores_that_do_not_hold_the_devices_are_said(self):
        said = []
        layout = {"devices": [{"share": .75, "rate": 1}, {"share": .75, "rate": 1}]}
        self.assertEqual(place(layout, [3], said.append), [3, 3])
        self.assertIn("150 % of a core together) do not fit on 1 cores", said[0])
        self.assertEqual(place(layout, [3, 5], said.append), [3, 5])


class Small(unittest.TestCase):
    def test_ranks_by_name(self):
        layout = {"hosts": [{"title": t} for t in ("node0", "node10", "node2")],
                  "devices": [{"host": 0}, {"host": 1}, {"host": 2}]}
        self.assertEqual(rank_order(layout, "devices"), [0, 1, 2])
        self.assertEqual(rank_order(layout, "names"), [0, 2, 1])

    def test_cpus(self):
        with mock.patch("os.sched_getaffinity", return_value={0, 1, 2, 3}):
            self.assertEqual(parse_cpus("0,2-3"), [0, 2, 3])
            self.assertEqual(parse_cpus(None), [0, 1, 2, 3])
            for bad in ("", "x", "4", "1-", "3-1"):
                with self.assertRaisesRegex(LabError, "--cpus"):
                    parse_cpus(bad)

    def test_bursts(self):
        self.assertEqual(kernel.burst(100e6), 16384)
        self.assertEqual(kernel.burst(500e6), 262144)
        self.assertEqual(kernel.burst(1e9), 500000)

    def test_without_root(self):
        with mock.patch("os.geteuid", return_value=1000):
            with self.assertRaisesRegex(LabError, "needs root"):
                build.require_root()

    def test_no_program(self):
        with self.assertRaisesRegex(LabError, "/nowhere/meshwright is no program"):
            read_cluster("cpu:2", "/nowhere/meshwright")


if __name__ == "__main__":
    unittest.main()
