"""A PostgreSQL of the test's own: on loopback, in a folder of its own, as an unprivileged user."""

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager

USER = "postgres"
BINARIES = sorted(glob.glob("/usr/lib/postgresql/*/bin")) or [os.path.dirname(shutil.which("initdb") or "")]


def missing():
    """Return why there can be no server here; nothing where there can."""
    if not os.path.exists(os.path.join(BINARIES[-1], "initdb")):
        return "PostgreSQL is not installed: apt-get install postgresql"
    if os.geteuid() == 0 and USER not in {entry.pw_name for entry in pwd.getpwall()}:
        return f"PostgreSQL refuses root, and there is no user {USER}"
    return ""


@contextmanager
def server():
    """Give the URL of an empty database inside the block."""
    own = {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/", **own}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="postgres-")
    try:
        if own:
            shutil.chown(folder, USER)
        initdb = [f"{BINARIES[-1]}/initdb", "-D", folder, "-U", USER, "--auth=trust", "--no-sync"]
        subprocess.run(initdb, check=True, **quiet)
        command = [f"{BINARIES[-1]}/postgres", "-D", folder, "-k", folder, "-h", "127.0.0.1", "-p", str(port), "-F"]
        with subprocess.Popen(command, **quiet) as started:
            try:
                _wait(started, port)
                yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
            finally:
                started.send_signal(signal.SIGINT)  # a fast shutdown: sessions are ended
                try:
                    started.wait(10)
                except subprocess.TimeoutExpired:
                    started.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(started, port):
    import psycopg

    for _ in range(600):
        assert started.poll() is None, "PostgreSQL ended as soon as it began"
        try:
            psycopg.connect(host="127.0.0.1", port=port, user=USER, dbname="postgres").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise AssertionError("PostgreSQL did not answer within a minute")
