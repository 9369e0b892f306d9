"""Stress test: kills and reconfigures agents under load, and checks every byte.

Two agents and two runs relay marked streams in their own namespaces. Meanwhile their processes are
killed, reloaded, restarted and drained, and their policies and certificates are replaced by others or
by invalid ones. A tap searches every packet for marks on connections that must use TLS. The tap and
the comparison of bytes are themselves tested every minute. Exit status 0 if no mark leaked, no byte
was wrong, no interrupted stream looked complete, every agent recovered and nothing was left behind;
otherwise 1.

The same seed selects the same events in the same order. The load, and the processes that exist when
an event happens, are different each time.
"""

import argparse
import collections
import itertools
import os
import random
import tempfile
import time
from pathlib import Path

import events
import load
import logs
from tap import Tap
from world import CLEAR_PORT, CONTROL_PORT, SERVER_PORT, World

PROGRESS_S = 10
PROOF_S = 60
# The origin of connections: a port of agent a, a run of agent a, a run with a private agent.
ORIGINS = {"p": "port", "s": "shared", "o": "own"}


def main() -> int:
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("chaos", description=__doc__, formatter_class=about)
    parser.add_argument("--tacit", type=Path, required=True, help="path of the tacit program")
    parser.add_argument("--minutes", type=float, required=True, help="duration")
    parser.add_argument("--seed", type=int, help="seed of the events [default: random]")
    options = parser.parse_args()
    if os.getpid() != 1:
        parser.error("the script needs its own namespaces: start it with `cargo xtask chaos`")
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"chaos: seed {seed}, {options.minutes:g} minutes", flush=True)
    chaos = Chaos(options.tacit.resolve(), seed)
    try:
        chaos.work(options.minutes * 60)
    except ProofFailed as failed:
        chaos.world.fail(f"{failed}: the results are not reliable")
    return chaos.summary()


class ProofFailed(Exception):
    """A check of the test itself failed, so its results are not reliable."""


class Chaos:
    def __init__(self, binary: Path, seed: int):
        self.seed = seed
        self.world = World(binary, Path(tempfile.mkdtemp(prefix="tacit-chaos-")))
        self.tap = Tap([CLEAR_PORT, SERVER_PORT], CONTROL_PORT)
        self.happened = collections.Counter()
        self.tally = Tally(self.world.report)

    def work(self, seconds: float):
        for agent in self.world.agents:
            agent.start()
            agent.bring_back()
        self.prove()
        self.world.start_load(seconds)
        self.disturb(seconds)
        self.prove()
        self.world.end()
        if self.tap.dropped():
            raise ProofFailed(f"the tap missed {self.tap.lost} packets")
        self.tally.read()

    def prove(self):
        if not load.prove():
            raise ProofFailed("the comparison does not detect wrong bytes")
        if not self.tap.prove():
            raise ProofFailed("the tap does not detect bytes in clear")
        if self.tap.dropped():
            raise ProofFailed(f"the tap missed {self.tap.lost} packets")

    def disturb(self, seconds: float):
        begun = time.monotonic()
        progress, proof = PROGRESS_S, PROOF_S
        for number in itertools.count():
            now = time.monotonic() - begun
            if now >= seconds:
                return
            self.world.keep_runs()
            self.happen(number)
            if now >= proof:
                proof = now + PROOF_S
                self.prove()
            if now >= progress:
                progress = now + PROGRESS_S
                self.look(now, number + 1)

    def happen(self, number: int):
        event, pause, draw = events.drawn(self.seed, number)
        name = events.name_of_event(event)
        self.world.note(f"{number} {name}")
        had_target = event(self.world, draw)
        self.happened[name + ("" if had_target else ", skipped: no target")] += 1
        time.sleep(pause)
        for agent in self.world.agents:
            agent.bring_back()

    def look(self, now: float, count: int):
        self.world.look_for_zombies()
        self.tally.read()
        tally, tap = self.tally, self.tap
        print(
            f"{now:6.0f} s  {count} events, {tally.connections()} connections, "
            f"{len(tally.faults)} wrong or silently cut, {tap.packets} packets, "
            f"{len(tap.leaks)} leaks, {len(self.world.failures)} failures",
            flush=True,
        )

    def summary(self) -> int:
        world, tap, tally = self.world, self.tap, self.tally
        files = [world.path(name) for name in ("a.log", "b.log", "runs.log")]
        files += world.path("state").rglob("*.log*")
        logged, unexplained = logs.look(files, world.killed)
        print("\nevents")
        print_counts(self.happened)
        print("log lines")
        print_counts(logged)
        starts = ", ".join(f"{agent.name} {agent.starts}" for agent in world.agents)
        print(f"agents started: {starts}; runs: {world.runs_started}")
        print(tally.table())
        print(
            f"tap: {tap.packets} packets, {tap.lost} missed; "
            f"detected {len(tap.controls)} of {tap.controls_sent} test marks sent in clear\n"
            f"packets with marks in clear: {len(tap.leaks)}\n"
            f"wrong bytes, silently cut streams, visible policy files: {len(tally.faults)}\n"
            f"unexplained log lines: {len(unexplained)}\n"
            f"failures: {len(world.failures)}"
        )
        faults = [tap.leaks, tally.faults, unexplained, world.failures]
        for text in (text for texts in faults for text in texts[:20]):
            print(f"  {text}")
        if not all(tally.whole(origin) for origin in ORIGINS):
            print("connections of one origin never succeeded: the test proves nothing")
        elif not any(faults):
            world.remove()
            return 0
        print(f"logs, policies, events: {world.directory}")
        return 1


class Tally:
    """The reports of clients and server so far."""

    def __init__(self, path: Path):
        self.file = open(path)
        self.ended = collections.Counter()
        self.bytes = collections.Counter()
        self.faults = []

    def read(self):
        for line in self.file:
            words = line.split()
            if words[0] != "end":
                self.faults.append(line.strip())
                continue
            _, role, session, outcome, size = words
            kind = (role, session[:2])
            self.ended[kind, outcome] += 1
            self.bytes[kind] += int(size)
            if outcome.startswith("ended"):
                self.faults.append(line.strip())

    def connections(self) -> int:
        return sum(count for ((role, _), _), count in self.ended.items() if role == "client")

    def whole(self, origin: str) -> int:
        whole = [one for one in self.ended if one[0][1][0] == origin and one[1] == "whole"]
        return sum(self.ended[one] for one in whole)

    def table(self) -> str:
        """A table by outcome, origin and kind of connection."""
        kinds = {kind[0]: kind for kind in load.MESSAGE_BYTES}
        titles = [*load.OUTCOMES, "bytes"]
        lines = [f"{'connections':22}" + "".join(f"{title:>15}" for title in titles)]
        for kind in sorted(self.bytes):
            role, session = kind
            name = f"{role} {ORIGINS.get(session[:1], '?')} {kinds.get(session[1:], '?')}"
            counts = [self.ended[kind, outcome] for outcome in load.OUTCOMES]
            lines.append(f"  {name:20}" + "".join(f"{n:>15}" for n in [*counts, self.bytes[kind]]))
        return "\n".join(lines)


def print_counts(counts):
    for name, count in sorted(counts.items(), key=lambda one: -one[1]):
        print(f"  {count:6}  {name}")


if __name__ == "__main__":
    raise SystemExit(main())
