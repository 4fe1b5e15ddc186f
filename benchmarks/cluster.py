"""How many runs an hour does a comparison do on one and on two nodes of a Ray cluster, and in processes without Ray?

    python benchmarks/cluster.py [--runs 8] [--out results/speed/cluster.json]

The nodes are processes on this machine with one CPU each; the clock starts when the cluster is up. Each run is a small
CNN on digits, 10 epochs, one thread, in a process of its own: starting it (Python, torch, data) is a part of the run.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from esam.files import write_atomically
from esam.runs import Comparison, Processes, plan, run_all
from esam.runs.ray import ray_cluster
from esam.train import Config
from esam.train.record import environment

CONFIG = Config(data="digits", model="cnn", batch_size=64, epochs=10, lr=0.05, threads=1)
METHODS = ("base", "sam")
IP = "127.0.0.2"  # loopback as well; Ray takes 127.0.0.1 for the machine's outward address


def timed(executor, count):
    """Return the seconds that so many runs take."""
    with tempfile.TemporaryDirectory() as out:
        runs = plan(Comparison(CONFIG, METHODS, tuple(range(-(-count // len(METHODS))))), out)[:count]
        began = time.perf_counter()
        run_all(runs, executor, poll=0.1)
        return time.perf_counter() - began


def on_ray(nodes, count):
    """Return the seconds that so many runs take on so many nodes."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        os.environ |= {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled"}
        head = {"num_cpus": 0, "include_dashboard": False, "node_ip_address": IP}
        started = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(nodes):
                started.add_node(num_cpus=1, node_ip_address=IP)
            with ray_cluster(started.address) as executor:
                return timed(executor, count)
        finally:
            started.shutdown()


WAYS = {
    "1 process": lambda count: timed(Processes(1), count),  # each ends with its run
    "2 processes": lambda count: timed(Processes(2), count),
    "Ray, 1 node": lambda count: on_ray(1, count),
    "Ray, 2 nodes": lambda count: on_ray(2, count),
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("results/speed/cluster.json"))
    options = parser.parse_args()
    found = {}
    for name, seconds_of in WAYS.items():
        seconds = seconds_of(options.runs)
        found[name] = {"seconds": seconds, "runs / hour": 3600 * options.runs / seconds, "load": os.getloadavg()[0]}
        print(f"{name}: {found[name]['runs / hour']:.0f} runs an hour", flush=True)
    about = {"cores": os.cpu_count(), "runs": options.runs, "config": CONFIG.as_json(), "methods": METHODS}
    record = {**about, "places": found, "environment": environment()}
    write_atomically(options.out, (json.dumps(record, indent=1) + "\n").encode())
