"""Flood test: measures how long floods of half-open connections delay other clients.

An agent has two TLS rules. Floods of connections to one of them send nothing, or only half of a
ClientHello, and are opened again within a second of being closed. Meanwhile a client with another
address does handshakes with both rules. Another agent then gets thousands of halves of ClientHellos
at once, and must return the memory for them when they have gone.

Exit status 0 if delays and memory are within the limits; otherwise 1. A flood that does not fill the
agent proves nothing, and fails too. Other programs on the machine lengthen the times.
"""

import argparse
import json
import os
import resource
import select
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOST = "127.0.0.1"
ECHO_PORT, FLOODED_PORT, OTHER_PORT = 7001, 7002, 7003
CLIENT_ADDRESS = "127.9.0.1"

FLOOD_SOCKETS = 12_000
FLOODS = [("silent", 3), ("silent", 10), ("silent", 50), ("silent", 3_000), ("half", 10)]
MEMORY_SOCKETS, MEMORY_ADDRESSES = 9_000, 4
# Handshakes for each measurement; a flood is measured for longer than a handshake may take.
HANDSHAKES = 160
# The open connections of a flood are counted before every so many handshakes: the flood opens what
# the agent has reset only after a moment, so that one count says little.
COUNTED_HANDSHAKES = 20
PAUSE_S = 0.1

MEDIAN_DELAY_MAX_MS = 50
WORST_DELAY_MAX_MS = 500
# The memory that may be left of what the half-open connections needed, and the smallest unit.
LEFT_PART_MAX = 0.1
LEFT_MAX_KIB = 2048
# The agent refuses handshakes when half of its connections wait for one. Of these connections, or of
# the flood if that is smaller, this part must be open at the median.
OPEN_PART_MIN = 0.9

# A process of the flood has so many sockets, because a process may open 4,096 files everywhere.
PROCESS_SOCKETS = 3_000
START_MAX_S = 20
FLOOD_MAX_S = 60
RETURN_MAX_S = 30
HANDSHAKE_MAX_S = 30

RULE = """
[[rule]]
name = "{name}"
listen = "{host}:{port}"
connect = "{host}:{echo}"
tls = {{ role = "server", identity = "web", client-cert = "none" }}
"""
POLICY = """version = 1
[identity.web]
cert = "web.pem"
key = "web.key"
"""


def main() -> int:
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("flood", description=__doc__, formatter_class=about)
    parser.add_argument("--tacit", type=Path, required=True, help="path of the tacit program")
    options = parser.parse_args()
    if os.getpid() != 1:
        parser.error("the script needs its own namespaces: start it with `cargo xtask flood`")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    world = World(options.tacit.resolve())
    failures = world.measure_delays() + world.measure_memory()
    for failure in failures:
        print(f"flood: {failure}", file=sys.stderr)
    print("failed" if failures else "all within the limits")
    return 1 if failures else 0


class World:
    """The echo server and the files of the agents; all processes end with this namespace."""

    def __init__(self, binary: Path):
        self.binary = binary
        self.directory = tempfile.TemporaryDirectory(prefix="tacit-flood-")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for words in (["init"], ["issue", "web", "--san", "localhost"]):
            subprocess.run([binary, "ca", *words], cwd=self.directory.name, check=True,
                           stdout=subprocess.DEVNULL)
        self.client = ssl.create_default_context(cafile=self.path("ca.pem"))
        run("echo", HOST, ECHO_PORT).stdout.readline()

    def path(self, name: str) -> Path:
        return Path(self.directory.name, name)

    def measure_delays(self) -> list:
        agent = Agent(self, "delays")
        quiet = self.handshakes()
        print(f"{'flood':8}{'addresses':>10}{'open':>8}  handshake of another client, in ms: "
              f"median, worst\n{'':28}flooded rule{'':8}other rule", flush=True)
        self.show("none", "", 0, quiet)
        failures = []
        for kind, addresses in FLOODS:
            flood = Flood(kind, FLOOD_SOCKETS, addresses)
            counts = []
            times = self.handshakes(lambda: counts.append(agent.connections()))
            count = int(statistics.median(counts))
            flood.end()
            self.show(kind, addresses, count, times)
            name = f"{FLOOD_SOCKETS} {kind} sockets of {addresses} addresses"
            failures += agent.too_few(name, count, FLOOD_SOCKETS) + excess(name, quiet, times)
        agent.end()
        return failures

    def handshakes(self, count=lambda: None) -> dict:
        """The durations in ms of handshakes with each of the two rules, by turns; calls `count`
        from time to time."""
        times = {FLOODED_PORT: [], OTHER_PORT: []}
        for number in range(HANDSHAKES):
            if number % COUNTED_HANDSHAKES == 0:
                count()
            port = (FLOODED_PORT, OTHER_PORT)[number % 2]
            times[port].append(self.handshake(port))
            time.sleep(PAUSE_S)
        return times

    def handshake(self, port: int) -> float:
        """The time until the first byte has been sent to the echo server and back."""
        begun = time.monotonic()
        source = (CLIENT_ADDRESS, 0)
        try:
            with socket.create_connection((HOST, port), HANDSHAKE_MAX_S, source) as plain:
                with self.client.wrap_socket(plain, server_hostname="localhost") as secured:
                    secured.sendall(b"x")
                    if secured.recv(1) != b"x":
                        return float("inf")
        except OSError:
            return float("inf")
        return (time.monotonic() - begun) * 1000

    def show(self, kind, addresses, count, times):
        shown = "".join(f"{statistics.median(of):12.1f}{max(of):8.1f}" for of in times.values())
        print(f"{kind:8}{addresses:>10}{count:>8}{shown}", flush=True)

    def measure_memory(self) -> list:
        agent = Agent(self, "memory")
        self.handshakes()
        before = agent.resident_kib()
        flood = Flood("half-once", MEMORY_SOCKETS, MEMORY_ADDRESSES)
        count, during = agent.connections(), agent.resident_kib()
        flood.end()
        allowed = before + max(LEFT_MAX_KIB, int(LEFT_PART_MAX * (during - before)))
        until = time.monotonic() + RETURN_MAX_S
        while (after := agent.resident_kib()) > allowed and time.monotonic() < until:
            time.sleep(0.5)
        each = (during - before) / max(count, 1)
        print(f"memory of agent, signer and supervisor in KiB: {before} before, {during} with "
              f"{count} half-open connections ({each:.1f} each), {after} after them")
        failures = agent.too_few("half-open connections", count, MEMORY_SOCKETS)
        agent.end()
        if after > allowed:
            failures.append(f"after {RETURN_MAX_S} s, {after - before} KiB more than before the "
                            f"half-open connections are left; at most {allowed - before} may be")
        return failures


def excess(name: str, quiet: dict, times: dict) -> list:
    """What is over the limits."""
    failures = []
    for port, of in times.items():
        rule = "the flooded rule" if port == FLOODED_PORT else "the other rule"
        usual = statistics.median(quiet[port])
        for what, found, most in [("median", statistics.median(of), MEDIAN_DELAY_MAX_MS),
                                  ("worst", max(of), WORST_DELAY_MAX_MS)]:
            if found - usual >= most:
                failures.append(f"{name}: {what} delay of {found - usual:.0f} ms at {rule}, "
                                f"limit {most} ms")
    return failures


class Agent:
    def __init__(self, world: World, name: str):
        self.world, self.control = world, world.path(f"{name}.sock")
        rules = [("flooded", FLOODED_PORT), ("other", OTHER_PORT)]
        text = POLICY + "".join(
            RULE.format(name=rule, port=port, host=HOST, echo=ECHO_PORT) for rule, port in rules)
        policy = world.path(f"{name}.toml")
        policy.write_text(text)
        log = open(world.path(f"{name}.log"), "wb")
        self.process = subprocess.Popen(
            [world.binary, "agent", "--policy", policy, "--control", self.control],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + START_MAX_S
        while world.handshake(OTHER_PORT) == float("inf"):
            if time.monotonic() > until:
                raise SystemExit("flood: the agent does not serve: " + Path(log.name).read_text())
            time.sleep(0.1)

    def too_few(self, name: str, count: int, sockets: int) -> list:
        """The failure if fewer connections of a flood were open than the agent can have."""
        least = int(OPEN_PART_MIN * min(self.limit()["max"] // 2, sockets))
        return [f"{name}: only {count} were open, fewer than {least}"] if count < least else []

    def limit(self) -> dict:
        shown = subprocess.run(
            [self.world.binary, "show", "limits", "--json", "--control", self.control],
            check=True, capture_output=True)
        limits = json.loads(shown.stdout)["limits"]
        return next(limit for limit in limits if limit["name"] == "connections")

    def connections(self) -> int:
        return self.limit()["used"]

    def resident_kib(self) -> int:
        return sum(resident_kib(pid) for pid in family(self.process.pid))

    def end(self):
        self.process.terminate()
        self.process.wait(START_MAX_S)


class Flood:
    """The processes of a flood; ready when all its sockets were opened."""

    def __init__(self, kind: str, sockets: int, addresses: int):
        parts = range(0, sockets, PROCESS_SOCKETS)
        self.processes = [
            run("flood", kind, HOST, FLOODED_PORT, min(PROCESS_SOCKETS, sockets - at), addresses)
            for at in parts
        ]
        for process in self.processes:
            if not select.select([process.stdout], [], [], FLOOD_MAX_S)[0]:
                raise SystemExit("flood: the sockets of the flood cannot be opened")
            process.stdout.readline()

    def end(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(START_MAX_S)


def run(*words) -> subprocess.Popen:
    command = [sys.executable, "-B", HERE / "peers.py", *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def family(pid: int) -> list:
    found = [pid]
    for one in found:
        found.extend(map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split()))
    return found


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


if __name__ == "__main__":
    raise SystemExit(main())
