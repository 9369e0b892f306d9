"""The agents and runs of the stress test: their files and processes, and how they are restarted.

    programs ── C, clear ──> agent a ── T, TLS ──> agent b ── S, clear ──> echo server
    program of a run ──────────────────  T, TLS ──┘

Agent a also serves runs. Each agent has an identity, and therefore a signer. All processes are in one
network namespace and one process namespace, which the caller has made.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ADDRESS = "10.77.0.1"
CLEAR_PORT, TLS_PORT, SERVER_PORT, CONTROL_PORT = 7001, 7002, 7003, 7004
# Time limit for an agent to recover, including a drain and a start under load.
RETURN_MAX_S = 60
# If a command gets no answer within this time, the agent hangs.
VERB_MAX_S = 60
RUN_SECONDS = 20
# Time limit for a process to end; a run's connections may last a minute longer than its launcher.
END_MAX_S = 30
LINGER_MAX_S = 90

CLIENT = """version = 1
[trust.peer]
ca = "ca.pem"
[identity.me]
cert = "a.pem"
key = "a.key"
"""
RUN = f"""
[[rule]]
name = "run"
direction = "outbound"
remote = "{ADDRESS}"
remote-ports = {TLS_PORT}
tls = {{ identity = "me", trust = "peer", server-name = "localhost" }}
"""
OUT = f"""
[[rule]]
name = "out"
listen = "127.0.0.1:{CLEAR_PORT}"
connect = "{ADDRESS}:{TLS_PORT}"
tls = {{ role = "client", identity = "me", trust = "peer", server-name = "localhost" }}
"""
IN = f"""version = 1
[trust.peer]
ca = "ca.pem"
[identity.web]
cert = "b.pem"
key = "b.key"
[[rule]]
name = "in"
listen = "{ADDRESS}:{TLS_PORT}"
connect = "127.0.0.1:{SERVER_PORT}"
tls = {{ role = "server", identity = "web", trust = "peer", client-cert = "required" }}
"""
# An additional rule, so that a reload has a change to install.
MORE = """
[[rule]]
name = "more"
listen = "127.0.0.1:{port}"
deny = true
"""


def status(pid: int):
    """Name, state and parent of a process; `None` if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1 :].rsplit(")", 1)
    state, parent = rest.split()[:2]
    return name, state, int(parent)


def processes():
    """All other processes of this process namespace, with their status."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    found = {pid: status(pid) for pid in numbers if pid != os.getpid()}
    return {pid: one for pid, one in found.items() if one}


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
    found = status(pid)
    return found[0] if found else ""


class Agent:
    """An agent with its supervisor, which is restarted when it has ended."""

    def __init__(self, world, name: str, policy: str, at, options=()):
        self.world, self.name, self.text, self.at = world, name, policy, at
        self.policy = world.path(f"{name}.toml")
        self.policy.write_text(policy)
        self.control = world.path(f"{name}.sock")
        self.options = list(options)
        self.log = open(world.path(f"{name}.log"), "ab")
        self.starts = 0
        self.process = None
        self.orphans = []
        self.install(0, "atomic")

    def start(self):
        self.starts += 1
        self.world.note(f"    agent {self.name} is started")
        arguments = ["agent", "--policy", self.policy, "--control", self.control, *self.options]
        self.process = self.world.tacit(arguments, self.log)

    def serving(self):
        """The agent processes; the newest is the last."""
        return [pid for pid in children(self.process.pid) if name_of(pid) == "tacit"]

    def signers(self):
        below = [child for pid in self.serving() for child in children(pid)]
        return [pid for pid in below if name_of(pid) == "signer"]

    def verb(self, *words) -> int:
        command = [str(self.world.binary), *words, "--control", str(self.control)]
        quiet = subprocess.DEVNULL
        try:
            answered = subprocess.run(command, stdout=quiet, stderr=quiet, timeout=VERB_MAX_S)
            return answered.returncode
        except subprocess.TimeoutExpired:
            self.world.fail(f"{self.name}: `tacit {' '.join(words)}` got no answer")
            return -1

    def write(self, text: str, how: str):
        if how == "atomic":
            new = self.policy.with_suffix(".new")
            new.write_text(text)
            new.rename(self.policy)
        else:
            self.policy.write_text(text)

    def install(self, pair: int, how: str):
        """Replaces certificate and key by one of two valid pairs, or by an invalid one."""
        for end in ("pem", "key"):
            content = self.world.path(f"{self.name}-{pair}.{end}").read_bytes()
            at = self.world.path(f"{self.name}.{end}")
            if how == "truncated":
                content = content[: len(content) // 2]
            target = at.with_suffix(f".{end}.new") if how == "atomic" else at
            target.touch(0o600)
            target.write_bytes(content)
            if how == "atomic":
                target.rename(at)

    def is_serving(self) -> bool:
        try:
            socket.create_connection(self.at, 1).close()
            return True
        except OSError:
            return False

    def bring_back(self):
        """Starts the agent if its supervisor has ended, and waits until it serves."""
        until = time.monotonic() + RETURN_MAX_S
        self.write(self.text, "atomic")
        while time.monotonic() < until:
            if self.process.poll() is not None:
                # An agent without its supervisor still has the port: kill it by its process id.
                self.world.kill(self.orphans)
                self.orphans = []
                self.start()
            if self.is_serving():
                return
            time.sleep(0.2)
        self.world.fail(f"{self.name} did not recover within {RETURN_MAX_S} s")

    def end(self):
        """Ends the agent; `World.look_behind` finds leftovers afterwards."""
        self.world.kill(self.orphans)
        self.process.terminate()
        try:
            self.process.wait(END_MAX_S)
        except subprocess.TimeoutExpired:
            self.world.fail(f"{self.name} did not end within {END_MAX_S} s of SIGTERM")


class World:
    def __init__(self, binary: Path, directory: Path):
        self.binary, self.directory = binary, directory
        self.failures = []
        self.runs = []
        self.runs_started = 0
        # Processes that were killed: (time, name, parent) by process id.
        self.killed = {}
        self.zombies = set()
        self.events = open(self.path("events"), "w", buffering=1)
        self.report = self.path("report")
        self.report.touch(0o600)
        self.temporary = [self.path(name) for name in ("tmp", "runtime")]
        for one in [*self.temporary, self.path("state")]:
            one.mkdir(0o700)
        names = dict(zip(("TMPDIR", "XDG_RUNTIME_DIR"), self.temporary))
        self.environment = {**os.environ, **names, "XDG_STATE_HOME": self.path("state")}
        self.run_log = open(self.path("runs.log"), "ab")
        self.lay_out()
        enrol = ["--enrol", self.path("enrol.sock")]
        self.a = Agent(self, "a", CLIENT + RUN + OUT, ("127.0.0.1", CLEAR_PORT), enrol)
        self.b = Agent(self, "b", IN, (ADDRESS, TLS_PORT))
        self.agents = [self.a, self.b]
        self.run_policy = self.path("run.toml")
        self.run_policy.write_text(CLIENT + RUN)

    def path(self, name: str) -> Path:
        return self.directory / name

    def note(self, text: str):
        """What happens, with its time, for those who look for the cause of a failure."""
        self.events.write(f"{time.time():.3f} {text}\n")

    def fail(self, text: str):
        self.note(text)
        self.failures.append(text)
        print(f"chaos: {text}", file=sys.stderr, flush=True)

    def kill(self, pids, number=signal.SIGKILL) -> bool:
        """Returns whether there was one to be killed."""
        found = False
        for pid in pids:
            one = status(pid)
            if one and one[1] != "Z":
                found |= self.send(pid, number)
                self.killed[pid] = (time.time(), one[0], one[2])
        return found

    def send(self, pid: int, number) -> bool:
        self.note(f"    {signal.Signals(number).name} to {pid} ({name_of(pid)})")
        try:
            os.kill(pid, number)
            return True
        except ProcessLookupError:
            return False

    def start(self, command, log):
        about = {"cwd": self.directory, "env": self.environment, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, **about)

    def tacit(self, arguments, log=subprocess.DEVNULL):
        return self.start([self.binary, *arguments], log)

    def load(self, *arguments):
        return [sys.executable, "-B", HERE / "load.py", *arguments]

    def lay_out(self):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
        pairs = [(f"a-{number}", ["--client"]) for number in (0, 1)]
        pairs += [(f"b-{number}", ["--san", "localhost"]) for number in (0, 1)]
        for words in (["init"], *(["issue", name, *options] for name, options in pairs)):
            if self.tacit(["ca", *words]).wait() != 0:
                raise SystemExit(f"chaos: tacit ca {' '.join(words)} failed")

    def start_load(self, seconds: float):
        """The echo server, and the clients of agent a's port: neither is killed."""
        server = self.load("serve", "127.0.0.1", SERVER_PORT, self.report)
        clients = self.load("port", "127.0.0.1", CLEAR_PORT, self.report, seconds)
        self.server, self.clients = (self.start(one, self.run_log) for one in (server, clients))

    def keep_runs(self):
        """Two runs at a time, by turns with an agent of their own and with agent a."""
        self.runs = [run for run in self.runs if run.poll() is None]
        while len(self.runs) < 2:
            is_shared = self.runs_started % 2
            if is_shared:
                way, policy = ["--agent", self.path("enrol.sock")], self.a.policy
            else:
                way, policy = ["--policy", self.run_policy], self.run_policy
            hidden = [policy, self.path("a.key"), self.path("ca.pem")]
            origin = "shared" if is_shared else "own"
            program = self.load(origin, ADDRESS, TLS_PORT, self.report, RUN_SECONDS, *hidden)
            self.runs.append(self.tacit(["run", *way, "--", *program], self.run_log))
            self.runs_started += 1
            self.note(f"    run {self.runs[-1].pid} {way[0]}")

    def processes_of_runs(self):
        return [pid for run in self.runs for pid in family(run.pid)]

    def look_for_zombies(self):
        """A child that has ended is waited for before the next look. Orphans are this process's."""
        now = {pid for pid, one in processes().items() if one[1] == "Z" and one[2] != os.getpid()}
        for pid in now & self.zombies:
            self.fail(f"process {pid} ({name_of(pid)}) has ended, and no parent waits for it")
        self.zombies = now

    def end(self):
        for run in self.runs:
            run.terminate()
        for run in self.runs:
            try:
                run.wait(END_MAX_S)
            except subprocess.TimeoutExpired:
                self.fail(f"a run did not end within {END_MAX_S} s of SIGTERM")
        for agent in self.agents:
            agent.end()
        if self.server.poll() is not None or self.clients.wait(LINGER_MAX_S) != 0:
            self.fail("the load has ended by itself, or not well")
        self.look_behind()
        self.server.kill()

    def look_behind(self):
        """Whatever is left was started here: the namespaces are this script's own."""
        until = time.monotonic() + LINGER_MAX_S
        while (left := self.left_behind()) and time.monotonic() < until:
            time.sleep(0.5)
        for text in left:
            self.fail(f"{text} was left behind")

    def left_behind(self):
        known = [self.server.pid, self.clients.pid]
        live = {pid: one for pid, one in processes().items() if one[1] != "Z" and pid not in known}
        left = [f"process {pid} ({one[0]}, child of {one[2]})" for pid, one in live.items()]
        sockets = [path for path in self.directory.iterdir() if path.is_socket()]
        temporary = [path for one in self.temporary for path in one.iterdir()]
        files = [path for path in sockets + temporary if not self.is_explained(path)]
        return left + [f"file {path}" for path in files] + listeners()

    def is_explained(self, path: Path) -> bool:
        """Whether the process that should have removed this was killed: the old agent itself, whose socket
        has its number, or launcher and supervisor of a run, whose directory has the launcher's."""
        end = path.name.rsplit(".", 1)[-1]
        if path.is_socket():
            return end.isdigit() and int(end) in self.killed
        launcher = next((int(word) for word in path.name.split("-") if word.isdigit()), 0)
        below = [name for _, name, parent in self.killed.values() if parent == launcher]
        return launcher in self.killed and any(name.startswith("tacit-sup") for name in below)

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)


def listeners():
    """TCP listeners that are not this script's."""
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            port = int(local.rsplit(":", 1)[1], 16)
            if state == "0A" and port not in (SERVER_PORT, CONTROL_PORT):
                found.append(f"listener at port {port}")
    return found
