"""Clients and server of the stress test, which send marked streams and check them.

Every unit of 32 bytes contains the session and its position in the stream. A client sends a stream,
an echo server sends it back, and both compare each byte with the expected one. So they detect bytes
that are lost, changed, duplicated or moved. The last unit marks the end of the stream. A program that
gives up or is killed closes with a reset (SO_LINGER of 0). So an orderly close before the last unit
means that a proxy cut the stream and hid it.

The programs append lines to the report immediately, so that none is lost when they are killed:

    wrong SESSION …                   a byte differs from the one that was sent
    seen PATH                         a program of a run can read a file of the policy
    end ROLE SESSION OUTCOME BYTES    a connection has ended (see OUTCOMES)
"""

import os
import random
import select
import socket
import struct
import sys
import threading
import time

MARK = b"CHAOS-"
UNIT_BYTES = 32
SESSION = slice(len(MARK), len(MARK) + 16)
# Message size of each kind of connection.
MESSAGE_BYTES = {"short": 256, "idle": 256, "bulk": 65536}
OUTCOMES = ("whole", "refused", "reset", "silent", "ended-between", "ended-inside")
# A longer silence is an outcome: a program whose launcher was killed keeps its connections.
SILENCE_MAX_S = 30
BULK_MESSAGES_MAX = 96
# A run whose agent has ended cannot connect: its program exits, and another run is started.
REFUSED_MAX = 40
IDLE_MAX_S = 5
# A file may be visible for this long before the helper covers it, on a busy machine.
COVER_MAX_S = 10


def stream(session: bytes, at: int, size: int) -> bytes:
    """`size` bytes of a stream from position `at`; both are multiples of a unit."""
    head = MARK + session
    return b"".join(
        head + b"%010d" % number for number in range(at // UNIT_BYTES, (at + size) // UNIT_BYTES)
    )


def last_unit(session: bytes) -> bytes:
    return MARK + session + b"the-end---"


class Ended(Exception):
    """The peer closed its stream in an orderly way, but too early."""


class Report:
    """The report file, shared by several processes; `line` returns after the line is written."""

    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def line(self, *words):
        os.write(self.file, " ".join(map(str, words)).encode() + b"\n")


class Checker:
    """Compares received with expected bytes. The first unit may determine the session."""

    def __init__(self, report: Report | None, role: str, session: bytes = b""):
        self.report, self.role, self.session = report, role, session
        self.whole = 0  # Bytes of whole units.
        self.rest = b""
        self.is_over = self.is_wrong = False

    @property
    def bytes(self) -> int:
        return self.whole + len(self.rest)

    def take(self, data: bytes):
        data = self.rest + data
        units = len(data) - len(data) % UNIT_BYTES
        body, self.rest = data[:units], data[units:]
        if body and not self.session:
            self.session = body[SESSION]
        has_last = body.endswith(last_unit(self.session))
        if has_last:
            body = body[:-UNIT_BYTES]
        if body != stream(self.session, self.whole, len(body)) or (self.is_over and data):
            self.say_wrong(body)
        self.whole += len(body)
        self.is_over |= has_last

    def end(self) -> str:
        """The outcome of an orderly close at this position."""
        wanted = (stream(self.session, self.whole, UNIT_BYTES), last_unit(self.session))
        if self.session and not any(unit.startswith(self.rest) for unit in wanted):
            self.say_wrong(self.rest)
        if self.is_over and not self.rest:
            return "whole"
        return "ended-inside" if self.bytes % message_bytes(self.session) else "ended-between"

    def say_wrong(self, body: bytes):
        if not self.is_wrong:
            self.is_wrong = True
            wanted = stream(self.session, self.whole, len(body))
            at = next((i for i, (a, b) in enumerate(zip(body, wanted)) if a != b), 0)
            where = f"{self.role} at byte {self.whole + at}: {body[at : at + 64]!r}"
            if self.report:
                self.report.line("wrong", self.name(), where)

    def name(self) -> str:
        return self.session.decode("ascii", "replace").replace(" ", "?") or "?"


def prove() -> bool:
    """Whether a checker detects injected errors and accepts correct streams."""
    session = b"ps" + b"0" * 14
    good = stream(session, 0, 512)
    changed = good[:300] + b"x" + good[301:]
    lost, doubled = good[:320] + good[352:], good[:320] + good[288:]
    moved = good[:256] + good[288:320] + good[256:288] + good[320:]
    end = last_unit(session)
    cases = [(good + end, "whole"), (good, "ended-between"), (good[:300], "ended-inside")]
    cases += [(bad + end, "wrong") for bad in (changed, lost, doubled, moved)]
    cases += [(good + end + good, "wrong"), (good[:299] + b"x", "wrong")]
    return all(found(data, size) == wanted for data, wanted in cases for size in (7, 64, 1024))


def found(data: bytes, size: int) -> str:
    checker = Checker(None, "proof")
    for at in range(0, len(data), size):
        checker.take(data[at : at + size])
    outcome = checker.end()
    return "wrong" if checker.is_wrong else outcome


def message_bytes(session: bytes) -> int:
    kinds = {kind[:1].encode(): size for kind, size in MESSAGE_BYTES.items()}
    return kinds.get(session[1:2], UNIT_BYTES)


def end_by_reset(sock, on: bool = True):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", on, 0))


class Client:
    """Opens one connection of one kind after the other."""

    def __init__(self, address, kind: str, origin: str, until: float, report: Report):
        self.address, self.kind, self.origin = address, kind, origin
        self.until, self.report = until, report
        self.last_whole = 0.0
        self.refused = 0

    def work(self):
        while time.monotonic() < self.until:
            self.exchange()
            if self.origin != "port" and self.refused >= REFUSED_MAX:
                os._exit(0)
            pause = {"short": 0.05, "idle": 0.5, "bulk": 1.5}[self.kind]
            time.sleep(random.uniform(0, pause))

    def exchange(self):
        text = f"{self.origin[0]}{self.kind[0]}{os.getpid():06}{random.getrandbits(32):08x}"
        checker = Checker(self.report, "client", text.encode())
        outcome = "refused"
        try:
            with socket.socket() as sock:
                end_by_reset(sock)
                sock.settimeout(SILENCE_MAX_S)
                sock.connect(self.address)
                outcome = "reset"
                getattr(self, self.kind)(sock, checker)
                self.finish(sock, checker)
                outcome = checker.end()
        except Ended:
            outcome = checker.end()
        except TimeoutError:
            outcome = "silent"
        except OSError:
            pass
        self.refused = self.refused + 1 if outcome == "refused" else 0
        if outcome == "whole":
            self.last_whole = time.monotonic()
        self.report.line("end", "client", text, outcome, checker.bytes)

    def short(self, sock, checker):
        for _ in range(random.choice([1, 3, 20, 200])):
            self.send(sock, checker)

    def idle(self, sock, checker):
        """Sends again after a pause in which an event may have happened."""
        for _ in range(3):
            self.send(sock, checker)
            left = self.until - time.monotonic()
            time.sleep(max(0, min(left, random.uniform(1, IDLE_MAX_S))))

    def bulk(self, sock, checker):
        """Transfers in both directions at the same time."""
        size = random.randint(16, BULK_MESSAGES_MAX) * MESSAGE_BYTES["bulk"]
        made, waiting = 0, b""
        while checker.bytes < size:
            writers = [sock] if waiting or made < size else []
            readable, writable, _ = select.select([sock], writers, [], SILENCE_MAX_S)
            if not readable and not writable:
                raise TimeoutError
            if writable:
                if not waiting:
                    waiting = stream(checker.session, made, MESSAGE_BYTES["bulk"])
                    made += len(waiting)
                waiting = waiting[sock.send(waiting) :]
            if readable:
                receive(sock, checker)

    def send(self, sock, checker):
        size = MESSAGE_BYTES[self.kind]
        sock.sendall(stream(checker.session, checker.whole, size))
        until = checker.bytes + size
        while checker.bytes < until:
            receive(sock, checker)

    def finish(self, sock, checker):
        sock.sendall(last_unit(checker.session))
        sock.shutdown(socket.SHUT_WR)
        while data := sock.recv(65536):
            checker.take(data)


def receive(sock, checker: Checker):
    data = sock.recv(65536)
    if not data:
        raise Ended
    checker.take(data)


def serve(address, report: Report):
    listener = socket.create_server(address, backlog=256)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=echo, args=(sock, report), daemon=True).start()


def echo(sock, report: Report):
    """Echoes a connection, and reports its outcome."""
    checker = Checker(report, "server")
    outcome = "reset"
    try:
        with sock:
            end_by_reset(sock)
            sock.settimeout(2 * SILENCE_MAX_S)
            while data := sock.recv(65536):
                checker.take(data)
                sock.sendall(data)
            outcome = checker.end()
            end_by_reset(sock, outcome != "whole")
    except TimeoutError:
        outcome = "silent"
    except OSError:
        pass
    # A connection without data only checks whether the agent accepts.
    if checker.bytes:
        report.line("end", "server", checker.name(), outcome, checker.bytes)


def watch_hidden(paths, clients, until: float, report: Report):
    """Reports a policy file that stays visible while launcher and connections work."""
    launcher = os.getppid()
    since = dict.fromkeys(paths)
    while time.monotonic() < until:
        now = time.monotonic()
        works = any(now - client.last_whole < COVER_MAX_S / 2 for client in clients)
        for path in paths:
            if not works or os.getppid() != launcher or not is_readable(path):
                since[path] = None
            elif since[path] is None:
                since[path] = now
            elif now - since[path] > COVER_MAX_S:
                report.line("seen", path)
                return
        time.sleep(0.5)


def is_readable(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def main():
    """`serve ADDRESS PORT REPORT`, or of clients `ORIGIN ADDRESS PORT REPORT SECONDS HIDDEN...`."""
    origin, address, port, path, *rest = sys.argv[1:]
    report = Report(path)
    address = (address, int(port))
    if origin == "serve":
        serve(address, report)
    until = time.monotonic() + float(rest[0])
    clients = [Client(address, kind, origin, until, report) for kind in MESSAGE_BYTES]
    threads = [threading.Thread(target=client.work) for client in clients]
    if rest[1:]:
        watch = (rest[1:], clients, until, report)
        threads.append(threading.Thread(target=watch_hidden, args=watch))
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main()
