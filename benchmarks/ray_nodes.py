"""A Ray cluster of processes on loopback, for tests and benchmarks: a head, and nodes that can be killed."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

IP = "127.0.0.2"
"""Loopback as well; Ray takes 127.0.0.1 for the machine's outward address."""
PORTS = range(20_000, 23_000)
"""Below what the system gives to connections, and none that Ray uses by itself (6379, 8265, 10001-19999, 23000-23999,
52365), so that no two components ask for the same port."""
COMPONENTS = (
    "node-manager",
    "object-manager",
    "runtime-env-agent",
    "metrics-export",
    "dashboard-agent-listen",
    "dashboard-agent-grpc",
)
QUICK = '{"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}'
PATIENCE, ATTEMPTS = 300, 4
LONG = 60
"""Seconds of an attempt to start a node after which a machine that was too busy is not asked again."""


class TooBusyError(RuntimeError):
    """Ray gives its own helpers 15 seconds to start, and this machine has not managed it."""


class RayNodes:
    """A head and ``nodes`` nodes of one CPU each, as ``ray start`` starts them; leave the block, and they are gone."""

    def __init__(self, folder, nodes=2, head_cpus=0):
        self.log, self.count, self.head_cpus = Path(folder) / "nodes.txt", nodes, head_cpus
        os.environ["RAY_AUTH_MODE"] = "disabled"  # else a token in one's home is the head's, and not its nodes'
        own = {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        self.environment = {**os.environ, **own}
        self.started = []

    def __enter__(self):
        try:
            self._add(self._head)
            for _ in range(self.count):  # one by one: at once, two would choose the same socket
                self._add(lambda: ["--address", self.address, "--num-cpus", "1"])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for process in self.started:
            kill_tree(process.pid)
            process.wait()

    def kill_node_of(self, word):
        """Kill the node that runs a command with this in its words, all its processes at once, as a power cut would.

        Return whether there was one; the head is left alone.
        """
        parents, nodes = parents_of_all(), [process.pid for process in self.started[1:]]
        for pid in [pid for pid in parents if any(word in each for each in words_of(pid))]:
            while pid not in (*nodes, 0):
                pid = parents.get(pid, 0)
            if pid:
                kill_tree(pid)
                return True
        return False

    def _head(self):
        """Return the words that start a head, with new ports."""
        port, self.client_port = free_ports(2)
        self.address = f"{IP}:{port}"
        ports = ["--port", str(port), "--ray-client-server-port", str(self.client_port)]
        words = ["--num-cpus", str(self.head_cpus), "--include-dashboard", "false", "--system-config", QUICK]
        return ["--head", *ports, *words]

    def _add(self, words):
        """Start a node; again with other ports where one was taken, or where a busy machine let it be late."""
        for _ in range(ATTEMPTS):
            told, began = self._told(), time.monotonic()
            node = self._start(words())
            wait_until(lambda: self._told() > told or node.poll() is not None, "a node")  # noqa: B023
            if node.poll() is None:
                self.started.append(node)
                return
            kill_tree(node.pid)
            if time.monotonic() - began > LONG:
                break
        log = self.log.read_text()
        raise (TooBusyError if "timed out during startup" in log else RuntimeError)(f"no node could be started:\n{log}")

    def _told(self):
        return self.log.read_text().count("Ray runtime started") if self.log.exists() else 0

    def _start(self, words):
        numbered = zip(COMPONENTS, free_ports(len(COMPONENTS)), strict=True)
        ports = [word for name, port in numbered for word in (f"--{name}-port", str(port))]
        common = ["--block", "--node-ip-address", IP, "--object-store-memory", "80000000", "--disable-usage-stats"]
        common += [*ports, "--min-worker-port", "0", "--max-worker-port", "0", "--include-log-monitor", "false"]
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", *common, *words]
            return subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)


def free_ports(count):
    """Return ports that nobody has now, each once."""
    found = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((IP, port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"fewer than {count} ports are free in {PORTS}")


def parents_of_all():
    """Return the parent of every process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
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
