"""The agents, the runs, and what belongs to them: files, processes, and how they come back.

    programs ── C, clear ──> agent a ── T, TLS ──> agent b ── S, clear ──> echo server
    program of a run ──────────────────  T, TLS ──┘

Agent a also serves runs. All of it is in one network namespace that the caller has made.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ADDRESS = "10.77.0.1"
CLEAR_PORT, TLS_PORT, SERVER_PORT, CONTROL_PORT = 7001, 7002, 7003, 7004
# An agent that is to come back has so long: a drain and a start under load are in it.
RETURN_MAX_S = 40
# A verb that does not answer within this time is an agent that hangs.
VERB_MAX_S = 60
RUN_SECONDS = 12

OUT = f"""version = 1
[trust.peer]
ca = "ca.pem"
[[rule]]
name = "out"
listen = "127.0.0.1:{CLEAR_PORT}"
connect = "{ADDRESS}:{TLS_PORT}"
tls = {{ role = "client", trust = "peer", server-name = "localhost" }}
[[rule]]
name = "run"
direction = "outbound"
remote = "{ADDRESS}"
remote-ports = {TLS_PORT}
tls = {{ trust = "peer", server-name = "localhost" }}
"""
IN = f"""version = 1
[identity.web]
cert = "web.pem"
key = "web.key"
[[rule]]
name = "in"
listen = "{ADDRESS}:{TLS_PORT}"
connect = "127.0.0.1:{SERVER_PORT}"
tls = {{ role = "server", identity = "web", client-cert = "none" }}
"""
# The same with another rule, so that a reload has something to do.
MORE = """
[[rule]]
name = "more"
listen = "127.0.0.1:{port}"
deny = true
"""


def children(pid: int):
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(word) for word in words]


def family(pid: int):
    found = [pid]
    for one in found:
        found.extend(children(one))
    return found


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def kill(pid: int, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class Agent:
    """One agent with its supervisor, started again when it is gone."""

    def __init__(self, world, name: str, policy: str, port: int, options=()):
        self.world, self.name, self.text, self.port = world, name, policy, port
        self.policy = world.path(f"{name}.toml")
        self.policy.write_text(policy)
        self.control = world.path(f"{name}.sock")
        self.options = list(options)
        self.log = open(world.path(f"{name}.log"), "ab")
        self.starts = 0
        self.process = None
        self.orphans = []

    def start(self):
        self.starts += 1
        arguments = ["agent", "--policy", self.policy, "--control", self.control, *self.options]
        self.process = self.world.tacit(arguments, self.log)

    def serving(self):
        """The agents' own processes, the newest last."""
        return [pid for pid in children(self.process.pid) if name_of(pid) == "tacit"]

    def signers(self):
        below = [child for pid in self.serving() for child in children(pid)]
        return [pid for pid in below if name_of(pid) == "signer"]

    def verb(self, *words) -> int:
        command = [str(self.world.binary), *words, "--control", str(self.control)]
        quiet = subprocess.DEVNULL
        try:
            return subprocess.run(command, stdout=quiet, stderr=quiet, timeout=VERB_MAX_S).returncode
        except subprocess.TimeoutExpired:
            self.world.fail(f"{self.name}: `tacit {' '.join(words)}` gave no answer")
            return -1

    def write(self, text: str, how: str):
        if how == "atomic":
            new = self.policy.with_suffix(".new")
            new.write_text(text)
            new.rename(self.policy)
        else:
            self.policy.write_text(text)

    def is_serving(self) -> bool:
        import socket

        address = ADDRESS if self.port == TLS_PORT else "127.0.0.1"
        try:
            socket.create_connection((address, self.port), 1).close()
            return True
        except OSError:
            return False

    def bring_back(self):
        """Starts it if its supervisor is gone, and waits until it serves."""
        until = time.monotonic() + RETURN_MAX_S
        self.write(self.text, "atomic")
        while time.monotonic() < until:
            if self.process.poll() is not None:
                # What outlived its supervisor holds the port: it is ended by its process number.
                for pid in self.orphans:
                    kill(pid)
                self.orphans = []
                self.start()
            if self.is_serving():
                return
            time.sleep(0.2)
        self.world.fail(f"{self.name} did not come back within {RETURN_MAX_S} s")

    def end(self):
        everyone = family(self.process.pid) + self.orphans
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.world.fail(f"{self.name} did not end within 10 s of SIGTERM")
        for pid in everyone:
            kill(pid)


class World:
    def __init__(self, binary: Path, directory: Path):
        self.binary, self.directory = binary, directory
        self.failures = []
        self.runs = []
        self.report = self.path("runs.report")
        self.report.touch()
        self.lay_out()
        enrol = ["--enrol", self.path("enrol.sock")]
        self.a = Agent(self, "a", OUT, CLEAR_PORT, enrol)
        self.b = Agent(self, "b", IN, TLS_PORT)
        self.agents = [self.a, self.b]
        self.run_policy = self.path("run.toml")
        self.run_policy.write_text(OUT.replace(f"127.0.0.1:{CLEAR_PORT}", "127.0.0.1:7010"))

    def path(self, name: str) -> Path:
        return self.directory / name

    def fail(self, text: str):
        self.failures.append(text)
        print(f"chaos: {text}", file=sys.stderr, flush=True)

    def tacit(self, arguments, log=subprocess.DEVNULL):
        command = [str(self.binary), *map(str, arguments)]
        return subprocess.Popen(
            command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def lay_out(self):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
        for words in (["init"], ["issue", "localhost"], ["issue", "second", "--san", "localhost"]):
            assert self.tacit(["ca", *words]).wait() == 0, words
        self.install("localhost", "atomic")

    def install(self, pair: str, how: str):
        """Puts one of two good pairs, or something that is none, where agent b reads it."""
        for end in ("pem", "key"):
            content = self.path(f"{pair}.{end}").read_bytes()
            at = self.path(f"web.{end}")
            if how == "truncated":
                content = content[: len(content) // 2]
            new = self.path(f"web.{end}.new")
            target = new if how == "atomic" else at
            target.touch(0o600)
            target.write_bytes(content)
            target.chmod(0o600)
            if how == "atomic":
                new.rename(at)

    def start_run(self, shared: bool):
        way = ["--agent", self.path("enrol.sock")] if shared else ["--policy", self.run_policy]
        program = [sys.executable, HERE / "load.py", ADDRESS, TLS_PORT, RUN_SECONDS, self.report]
        self.runs.append(self.tacit(["run", *way, "--", *program]))

    def keep_runs(self):
        """Two runs at a time: one with an agent of its own, one with agent a."""
        self.runs = [run for run in self.runs if run.poll() is None]
        while len(self.runs) < 2:
            self.start_run(random.random() < 0.5)

    def processes_of_runs(self):
        return [pid for run in self.runs for pid in family(run.pid)]

    def end(self):
        for run in self.runs:
            everyone = family(run.pid)
            run.terminate()
            try:
                run.wait(15)
            except subprocess.TimeoutExpired:
                self.fail("a run did not end within 15 s of SIGTERM")
            for pid in everyone:
                kill(pid)
        for agent in self.agents:
            agent.end()
        # Whatever is left was started here: the process namespace is this script's own.
        time.sleep(1)
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            if name_of(pid).startswith(("tacit", "signer")):
                self.fail(f"process {pid} ({name_of(pid)}) was left behind")
                kill(pid)

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)
