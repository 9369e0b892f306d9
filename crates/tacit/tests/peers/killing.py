"""Kills agents at random points under load, watched from the wire: killing.py ROUNDS SECONDS HOST PORT.

Each round is a run of load.py; rounds that would begin later than that are left out. The wire may carry no clear text to 10.9.8.8, and no connection but
those that the policy has. It says what is wrong, how many rounds there were, how many of
them with load, and `done`.
"""

import concurrent.futures
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time

rounds, host, port = int(sys.argv[1]), sys.argv[3], sys.argv[4]
end = time.monotonic() + float(sys.argv[2])
peers = os.environ["PEERS"]
seed = time.time_ns()
dice = random.Random(seed)
MARK = b"THIS IS IN CLEAR"
PLACES = {("10.9.8.8", int(port)), ("10.9.8.7", int(port)), ("127.0.0.1", 53)}
wrong, seen = [], {"packets": 0, "sealed": 0, "clear": 0}
over = threading.Event()

ETH_P_ALL = 3
PACKET_STATISTICS, SOL_PACKET, SO_RCVBUFFORCE = 6, 263, 33
wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
try:
    wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
except PermissionError:  # In a user namespace: as much as the host lets everybody have.
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 << 20)
wire.settimeout(0.2)


def watch():
    while True:
        try:
            packet = wire.recv(1 << 20)
        except TimeoutError:
            if over.is_set():
                return
            continue
        if packet[0] >> 4 != 4 or packet[9] != 6:
            continue
        seen["packets"] += 1
        to = socket.inet_ntoa(packet[16:20])
        tcp = packet[(packet[0] & 15) * 4 :]
        _, to_port = struct.unpack(">HH", tcp[:4])
        if tcp[13] & 0x12 == 0x02 and (to, to_port) not in PLACES:
            wrong.append(f"a connection to {to}:{to_port}")
        if to == "10.9.8.8":
            data = tcp[(tcp[12] >> 4) * 4 :]
            seen["sealed"] += len(data)
            if MARK in data:
                wrong.append(f"clear text to {to}:{to_port}")
        elif to == "10.9.8.7":
            seen["clear"] += len(tcp)


def below(pid):
    """The processes that a process has started, with theirs."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as children:
            for child in children.read().split():
                yield int(child)
                yield from below(child)


def name_of(pid):
    with open(f"/proc/{pid}/comm") as comm:
        return comm.read().strip()


def kill(launcher, names):
    """Kills processes of a run and waits until they are no more."""
    killed = []
    for pid in list(below(launcher.pid)):
        try:
            if name_of(pid) in names:
                os.kill(pid, 9)
                killed.append(pid)
        except OSError:
            pass
    while any(lives(pid) for pid in killed):
        time.sleep(0.0005)
    return bool(killed)


def lives(pid):
    """Whether a process has a thread left that may hold its sockets."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(runs(f"/proc/{pid}/task/{task}/stat") for task in tasks)


def runs(stat):
    try:
        with open(stat) as text:
            return text.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def one_round(number, names, early, delay):
    if time.monotonic() > end:
        return None
    killed = f"{os.environ['TMPDIR']}/killed-{number}"
    command = os.environ["USER_OF_RUNS"].split() + [
        "./tacit", "run", "--policy", "run.toml", "--",
        "/usr/bin/python3", f"{peers}/load.py", host, port, killed,
    ]
    hasty = os.environ | {"RES_OPTIONS": "timeout:1 attempts:1"}
    launcher = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=hasty
    )
    if not early:
        launcher.stdout.readline()
    time.sleep(delay)
    # A launcher that has only just been started may not have an agent to kill yet.
    while not kill(launcher, names) and launcher.poll() is None:
        time.sleep(0.0005)
    open(killed, "w").close()
    try:
        said = launcher.communicate(timeout=40)[0].decode().split("\n")
    except subprocess.TimeoutExpired:
        launcher.kill()
        return [f"round {number} does not end"], 0
    said = [line for line in said if line and line != "loading"]
    # Without an agent there is no run.
    if launcher.returncode == 125 and early:
        return [], 0
    if launcher.returncode != 0 or not said or not said[-1].startswith("done"):
        return [f"round {number}: status {launcher.returncode}, {said}"], 0
    return [f"round {number}: {what}" for what in said[:-1]], int(said[-1].split()[1])


watcher = threading.Thread(target=watch)
watcher.start()
made, loaded = 0, 0
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    plans = []
    for number in range(rounds):
        early = dice.random() < 0.25
        # A supervisor that has just been started may have an agent that is in no list yet.
        both = not early and dice.random() < 0.5
        names = ("tacit-agent", "tacit-supervise") if both else ("tacit-agent",)
        plans.append(
            pool.submit(one_round, number, names, early, dice.uniform(0, 0.15 if early else 0.05))
        )
    for plan in plans:
        if plan.result():
            faults, talks = plan.result()
            wrong += faults
            made += 1
            loaded += talks > 0
over.set()
watcher.join()
packets, dropped = struct.unpack("II", wire.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
if dropped:
    wrong.append(f"{dropped} packets of {packets} were not looked at")
for what in sorted(set(wrong))[:20]:
    print("WRONG", what, "seed", seed)
print(made, loaded, "done", seen)
