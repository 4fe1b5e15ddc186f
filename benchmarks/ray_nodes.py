"""A Ray cluster of processes on loopback, for tests and benchmarks: a head, and nodes that can be killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

IP = "127.0.0.2"
"""Loopback as well; Ray takes 127.0.0.1 for the machine's outward address."""
QUICK = '{"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}'
PATIENCE, ATTEMPTS = 300, 4


class RayNodes:
    """A head and ``nodes`` nodes of one CPU each, as ``ray start`` starts them; leave the block, and they are gone."""

    def __init__(self, folder, nodes=2):
        self.folder, self.count = folder, nodes
        os.environ["RAY_AUTH_MODE"] = "disabled"  # else a token in one's home is the head's, and not its nodes'
        self.environment = {
            **os.environ,
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }
        self.port, self.client_port = free_ports(2)
        self.address = f"{IP}:{self.port}"

    def __enter__(self):
        ports = ["--port", str(self.port), "--ray-client-server-port", str(self.client_port)]
        quiet = ["--num-cpus", "0", "--include-dashboard", "false", "--include-log-monitor", "false"]
        words = ["--address", self.address, "--num-cpus", "1", "--include-log-monitor", "false"]
        self.started = []
        try:
            for node in [["--head", *ports, *quiet, "--system-config", QUICK], *[words] * self.count]:
                self._add(node)  # one by one: at once, two would choose the same socket
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for process in self.started:
            kill_tree(process.pid)
            process.wait()

    def kill_node_of(self, word):
        """Kill every process of the node that runs a command with this word, at once, as a power cut would."""
        parents, nodes = parents_of_all(), [process.pid for process in self.started]
        for pid in parents:
            if word in words_of(pid):
                while pid not in (*nodes, 0):
                    pid = parents.get(pid, 0)
                if pid:
                    kill_tree(pid)
                    return
        raise RuntimeError(f"no node runs {word}")

    def _add(self, words):
        """Start a node; again where a busy machine lets it miss its half a minute."""
        log = self.folder / "nodes.txt"
        for _ in range(ATTEMPTS):
            node = self._start(words)
            self.started.append(node)
            wait_until(lambda: self._told() == len(self.started) or node.poll() is not None, "a node")  # noqa: B023
            if node.poll() is None:
                return
            kill_tree(node.pid)
            self.started.remove(node)
        raise RuntimeError(f"no node could be started:\n{log.read_text()}")

    def _told(self):
        return (self.folder / "nodes.txt").read_text().count("Ray runtime started")

    def _start(self, words):
        common = ["--block", "--node-ip-address", IP, "--object-store-memory", "80000000", "--disable-usage-stats"]
        with (self.folder / "nodes.txt").open("ab") as log:
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", *common, *words]
            return subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)


def free_ports(count):
    """Return ports that nobody has now."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind((IP, 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def parents_of_all():
    """Return the parent of every process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    return parents


def words_of(pid):
    """Return the words of a process's command."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def kill_tree(pid):
    """Kill a process and whatever it started."""
    parents, doomed = parents_of_all(), [pid]
    for one in doomed:
        doomed += [child for child, parent in parents.items() if parent == one]
    for one in doomed:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def wait_until(true, what):
    """Wait for something to become true; bounded."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < PATIENCE, f"waited in vain: {what}"
        time.sleep(0.05)
