"""Marked streams: every block says whose it is and where in the stream it stands.

A client sends blocks, an echo server sends them back, and both look at each byte. A connection that
is cut counts as cut; a byte that is wrong, missing in the middle or there twice counts as wrong.
"""

import os
import random
import socket
import threading
import time

MARK = b"CHAOS-"
BLOCK_BYTES = 256
# Longer silence counts as a cut: agents that were killed leave connections that nothing ends.
SILENCE_MAX_S = 5


def block(session: bytes, number: int) -> bytes:
    head = MARK + session + b"%010d" % number
    return (head * (BLOCK_BYTES // len(head) + 1))[:BLOCK_BYTES]


class Counts:
    """What became of connections; safe to use from several threads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.connections = self.whole = self.cut = self.bytes = 0
        self.wrong = []

    def add(self, outcome: str, bytes_moved: int):
        with self.lock:
            self.connections += 1
            self.bytes += bytes_moved
            self.whole += outcome == "whole"
            self.cut += outcome == "cut"

    def add_wrong(self, text: str):
        with self.lock:
            self.wrong.append(text)


def receive(sock, wanted: int) -> bytes:
    data = b""
    while len(data) < wanted:
        more = sock.recv(min(wanted - len(data), 65536))
        if not more:
            break
        data += more
    return data


def exchange(address, blocks: int, counts: Counts):
    """One connection: blocks there and back, then an orderly end."""
    session = b"%016x" % random.getrandbits(64)
    moved = 0
    outcome = "cut"
    try:
        with socket.create_connection(address, SILENCE_MAX_S) as sock:
            for number in range(blocks):
                sent = block(session, number)
                sock.sendall(sent)
                got = receive(sock, BLOCK_BYTES)
                moved += len(got)
                if got != sent[: len(got)]:
                    counts.add_wrong(f"client {session!r} block {number}: {got[:64]!r}")
                if len(got) < BLOCK_BYTES:
                    break
            else:
                sock.shutdown(socket.SHUT_WR)
                rest = sock.recv(1)
                if rest:
                    counts.add_wrong(f"client {session!r}: {rest!r} behind the end")
                outcome = "whole"
    except OSError:
        pass
    counts.add(outcome, moved)


def keep_exchanging(address, counts: Counts, until: float):
    while time.monotonic() < until:
        exchange(address, random.choice([1, 3, 20, 200]), counts)
        time.sleep(random.choice([0, 0.01, 0.05]))


class EchoServer:
    """Sends blocks back, and looks whether each is the next of its stream."""

    def __init__(self, address, counts: Counts):
        self.counts = counts
        self.listener = socket.create_server(address, backlog=256)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock):
        sock.settimeout(30)
        session, number = None, 0
        try:
            with sock:
                while True:
                    got = receive(sock, BLOCK_BYTES)
                    if not got:
                        return
                    session = session or got[len(MARK) : len(MARK) + 16]
                    wanted = block(session, number)
                    if got != wanted[: len(got)] and len(got) > len(MARK) + 16:
                        self.counts.add_wrong(f"server {session!r} block {number}: {got[:64]!r}")
                    if len(got) < BLOCK_BYTES:
                        return
                    sock.sendall(got)
                    number += 1
        except OSError:
            pass


def main():
    """A client as a program of a run: ADDRESS PORT SECONDS; says what it found when it ends."""
    import sys

    counts = Counts()
    until = time.monotonic() + float(sys.argv[3])
    keep_exchanging((sys.argv[1], int(sys.argv[2])), counts, until)
    with open(sys.argv[4], "a") as report:
        report.write(f"{counts.connections} {counts.whole} {counts.cut} {counts.bytes}\n")
        for text in counts.wrong:
            report.write(f"wrong {text}\n")
    os._exit(1 if counts.wrong else 0)


if __name__ == "__main__":
    main()
