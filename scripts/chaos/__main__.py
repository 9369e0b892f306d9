"""Random violence under marked load: no marked byte may leave in clear, and none may be wrong.

    python3 scripts/chaos --tacit target/release/tacit --minutes 30 [--seed N]

In a network namespace of its own (`cargo xtask chaos` makes it) two agents and two runs carry marked
streams, while their processes are killed, reloaded, restarted and drained, and their policies and
certificates are exchanged or spoilt. A tap searches every packet for marks where the policy says
TLS, and is itself tried each minute. Exit status 0 if nothing leaked, no byte was wrong, every agent
came back and no process was left; 1 if not.
"""

import argparse
import collections
import random
import tempfile
import threading
import time
from pathlib import Path

import events
from load import Counts, EchoServer, keep_exchanging
from tap import Tap
from world import CLEAR_PORT, CONTROL_PORT, SERVER_PORT, World

CLIENTS = 3
PROGRESS_S = 10
PROOF_S = 60
# From one event to the next.
PAUSE_MAX_S = 1.5


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--tacit", type=Path, required=True, help="the program")
    parser.add_argument("--minutes", type=float, required=True, help="how long")
    parser.add_argument("--seed", type=int, help="where the draws begin; load changes what follows")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    random.seed(seed)
    print(f"chaos: seed {seed}, {options.minutes:g} minutes", flush=True)
    return work(options.tacit.resolve(), options.minutes * 60)


def work(binary: Path, seconds: float) -> int:
    world = World(binary, Path(tempfile.mkdtemp(prefix="tacit-chaos-")))
    tap = Tap([CLEAR_PORT, SERVER_PORT], CONTROL_PORT)
    clients, server = Counts(), Counts()
    EchoServer(("127.0.0.1", SERVER_PORT), server)
    for agent in world.agents:
        agent.start()
        agent.bring_back()
    if not tap.prove():
        world.fail("the tap does not see what leaves in clear")
    until = time.monotonic() + seconds
    for _ in range(CLIENTS):
        arguments = (("127.0.0.1", CLEAR_PORT), clients, until)
        threading.Thread(target=keep_exchanging, args=arguments, daemon=True).start()
    happened = disturb(world, tap, clients, until)
    world.end()
    return report(world, tap, clients, server, happened)


def disturb(world, tap, clients, until):
    happened = collections.Counter()
    begun = time.monotonic()
    progress, proof = begun + PROGRESS_S, begun + PROOF_S
    while time.monotonic() < until:
        world.keep_runs()
        happened[events.one(world)] += 1
        time.sleep(random.uniform(0, PAUSE_MAX_S))
        for agent in world.agents:
            agent.bring_back()
        now = time.monotonic()
        if now >= proof:
            proof = now + PROOF_S
            if not tap.prove():
                world.fail("the tap missed a mark that left in clear on purpose")
        if now >= progress:
            progress = now + PROGRESS_S
            print(
                f"{now - begun:6.0f} s  {sum(happened.values())} events, {clients.connections} "
                f"connections, {clients.cut} cut, {len(clients.wrong)} wrong, {tap.packets} packets, "
                f"{len(tap.leaks)} leaks, {len(world.failures)} failures",
                flush=True,
            )
    return happened


def report(world, tap, clients, server, happened) -> int:
    lines = world.report.read_text().splitlines()
    wrong = clients.wrong + server.wrong + [line for line in lines if line.startswith("wrong")]
    of_runs = [list(map(int, line.split())) for line in lines if line[:1].isdigit()]
    total = [sum(column) for column in zip(*of_runs)] or [0, 0, 0, 0]
    print("\nevents")
    for name, count in happened.most_common():
        print(f"  {count:6}  {name.replace('_', ' ')}")
    starts = ", ".join(f"{agent.name} {agent.starts}" for agent in world.agents)
    print(
        f"connections: {clients.connections} through ports, {clients.whole} whole, {clients.cut} cut or refused, "
        f"{clients.bytes} bytes back\n"
        f"connections: {total[0]} of {len(of_runs)} runs that ended by themselves, {total[1]} whole, "
        f"{total[2]} cut or refused, {total[3]} bytes back\n"
        f"agents started: {starts}\n"
        f"tap: {tap.packets} packets, {tap.dropped()} not seen; "
        f"{len(tap.controls)} of {tap.controls_sent} marks sent in clear on purpose were seen\n"
        f"marked bytes outside: {len(tap.leaks)} packets\n"
        f"wrong bytes: {len(wrong)} blocks\n"
        f"failures: {len(world.failures)}"
    )
    for text in [*tap.leaks[:20], *wrong[:20], *world.failures[:20]]:
        print(f"  {text}")
    is_good = not (tap.leaks or wrong or world.failures)
    if is_good and clients.whole == 0:
        print("no connection ever worked: this says nothing")
        is_good = False
    if is_good:
        world.remove()
    else:
        print(f"logs and policies: {world.directory}")
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
