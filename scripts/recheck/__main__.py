"""Measures what the check of open connections costs when the trust of a rule changes.

Four agents have a rule with mutual TLS: two without connections, one with connections whose clients
have the same certificate, and one with connections of many certificates. In each round, each agent
gets a trust file with one CA more or less, and is told to reload. The table has the CPU time of its
processes for that (median, in ms), and how much longer it is than without connections, for each
connection and each certificate. The two agents without connections show how steady the figures are.
"""

import argparse
import os
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOST, ECHO_PORT, FIRST_PORT = "127.0.0.1", 7001, 7010
CONNECTIONS = 1_000
CERTIFICATES = 100
# The agents: connections and certificates of their clients.
KINDS = [("none", 0, 1), ("none again", 0, 1), ("one certificate", CONNECTIONS, 1),
         (f"{CERTIFICATES} certificates", CONNECTIONS, CERTIFICATES)]
ROUNDS = 9
START_MAX_S = 20
# An agent must have logged its check after this time, and then gets time for what follows.
CHECK_MAX_S = 10
REST_S = 0.5

# The clock of the CPU time of a process: the kernel keeps the complement of its number above these
# bits.
CPU_CLOCK, PID_SHIFT = 2, 3

POLICY = """version = 1
[identity.web]
cert = "web.pem"
key = "web.key"
[trust.clients]
ca = "{trust}"
[[rule]]
name = "front"
listen = "{host}:{port}"
connect = "{host}:{echo}"
tls = {{ role = "server", identity = "web", client-cert = "required", trust = "clients" }}
"""


def main() -> int:
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("recheck", description=__doc__, formatter_class=about)
    parser.add_argument("--tacit", type=Path, required=True, help="path of the tacit program")
    options = parser.parse_args()
    if os.getpid() != 1:
        parser.error("the script needs its own namespaces: start it with `cargo xtask recheck`")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="tacit-recheck-") as directory:
        files = Files(options.tacit.resolve(), Path(directory))
        listener = socket.create_server((HOST, ECHO_PORT), backlog=1024)
        agents = [Agent(files, number, kind) for number, kind in enumerate(KINDS)]
        accepted = [agent.connect(listener) for agent in agents]
        for number in range(ROUNDS):
            print(f"[{number + 1}/{ROUNDS}]", file=sys.stderr, flush=True)
            for agent in agents:
                agent.measure(number)
        show(agents)
        faults = [fault for agent in agents for fault in agent.faults()]
        for fault in faults:
            print(f"recheck: {fault}", file=sys.stderr)
        for agent in agents:
            agent.end()
        del accepted
    return 1 if faults else 0


class Files:
    """A CA, another CA, a server's certificate, and those of the clients."""

    def __init__(self, binary: Path, directory: Path):
        self.binary, self.directory = binary, directory
        self.call("ca", "init")
        self.call("ca", "init", "--dir", "other")
        self.call("ca", "issue", "web", "--san", "localhost")
        for number in range(CERTIFICATES):
            self.call("ca", "issue", f"client{number}", "--client")
        own, other = (Path(directory, at).read_text() for at in ("ca.pem", "other/ca.pem"))
        self.trusts = [own, own + other]

    def call(self, *words):
        subprocess.run([self.binary, *words], cwd=self.directory, check=True,
                       stdout=subprocess.DEVNULL)

    def path(self, name: str) -> Path:
        return Path(self.directory, name)


class Agent:
    def __init__(self, files: Files, number: int, kind):
        self.name, self.connections, self.certificates = kind
        self.files, self.port, self.times = files, FIRST_PORT + number, []
        self.control, self.trust = files.path(f"{number}.sock"), files.path(f"trust{number}.pem")
        self.trust.write_text(files.trusts[1])
        policy = files.path(f"{number}.toml")
        policy.write_text(POLICY.format(trust=self.trust.name, host=HOST, port=self.port,
                                        echo=ECHO_PORT))
        self.log = files.path(f"{number}.log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [files.binary, "agent", "--policy", policy, "--control", self.control],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.open = []
        until = time.monotonic() + START_MAX_S
        while not self.serves():
            if time.monotonic() > until:
                raise SystemExit("recheck: the agent does not serve: " + self.log.read_text())
            time.sleep(0.1)

    def serves(self) -> bool:
        shown = subprocess.run([self.files.binary, "show", "limits", "--control", self.control],
                               capture_output=True, check=False)
        return shown.returncode == 0

    def connect(self, listener) -> list:
        """Opens the connections; returns the server's ends of them."""
        accepted = []
        for number in range(self.connections):
            name = f"client{number % self.certificates}"
            context = ssl.create_default_context(cafile=self.files.path("ca.pem"))
            context.load_cert_chain(self.files.path(f"{name}.pem"), self.files.path(f"{name}.key"))
            plain = socket.create_connection((HOST, self.port))
            tls = context.wrap_socket(plain, server_hostname="localhost")
            tls.sendall(b"x")
            end, _ = listener.accept()
            if end.recv(1) != b"x":
                raise SystemExit("recheck: a byte did not arrive")
            self.open.append(tls)
            accepted.append(end)
        return accepted

    def measure(self, number: int):
        self.trust.write_text(self.files.trusts[number % 2])
        before, checks = self.cpu_ns(), self.checks()
        self.files.call("reload", "--control", self.control)
        until = time.monotonic() + CHECK_MAX_S
        while self.connections and self.checks() == checks:
            if time.monotonic() > until:
                raise SystemExit("recheck: no check of the peers was logged")
            time.sleep(0.05)
        time.sleep(REST_S)
        self.times.append((self.cpu_ns() - before) / 1e6)

    def checks(self) -> int:
        return self.log.read_text().count("peers-checked")

    def cpu_ns(self) -> int:
        """The CPU time of the agent and its child processes, with that of threads that have ended."""
        pids = [self.process.pid]
        for pid in pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids.extend(map(int, (task / "children").read_text().split()))
        return sum(time.clock_gettime_ns(CPU_CLOCK | ~pid << PID_SHIFT) for pid in pids)

    def faults(self) -> list:
        shown = subprocess.run(
            [self.files.binary, "show", "connections", "--json", "--control", self.control],
            check=True, capture_output=True, text=True).stdout
        count = shown.count('"valid"')
        if count < self.connections:
            return [f"{self.name}: {count} of {self.connections} connections have a valid peer"]
        return []

    def end(self):
        self.process.terminate()
        self.process.wait(START_MAX_S)


def show(agents: list):
    usual = statistics.median(agents[0].times)
    print("| connections | certificates | CPU ms | more ms | us for a connection | "
          "us for a certificate |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for agent in agents:
        median = statistics.median(agent.times)
        more = median - usual
        certificates = agent.certificates if agent.connections else 0
        each = [f"{1000 * more / count:.1f}" if count else "-"
                for count in (agent.connections, certificates)]
        print(f"| {agent.connections} | {certificates} | {median:.1f} | {more:.1f} | "
              f"{' | '.join(each)} |")


if __name__ == "__main__":
    raise SystemExit(main())
