"""Sends a stream to an echo server and compares what returns:

    echo_stream.py serve ADDRESS PORT REPORT
    echo_stream.py send ADDRESS PORT SECONDS BYTES_PER_SECOND

Both print `exact` and `worst`: how often in a row the kernel has repeated a segment because no answer arrived
(`tcpi_retransmits`). It is 1 if the stream has stalled for one retransmission time-out. The server serves one
connection, and writes to REPORT.
"""
import os, select, socket, sys, time

CHUNK_BYTES = 16384
TICK_S = 0.01


class Link:
    def __init__(self, connection):
        self.connection, self.worst = connection, 0
        connection.setblocking(False)

    def ready(self, wants_write):
        """Waits a moment, and notes repeated segments. Returns whether bytes arrived, and whether there is room."""
        writers = [self.connection] if wants_write else []
        readers, writers, _ = select.select([self.connection], writers, [], TICK_S)
        info = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        self.worst = max(self.worst, info[2])
        return bool(readers), bool(writers)


def serve(address, port, report):
    with socket.create_server((address, int(port))) as server:
        connection, _ = server.accept()
    link, waiting, total, is_open = Link(connection), b"", 0, True
    while is_open or waiting:
        readable, writable = link.ready(bool(waiting))
        if readable and is_open and len(waiting) < 1 << 20:
            got = connection.recv(CHUNK_BYTES)
            is_open = bool(got)
            waiting += got
            total += len(got)
        elif readable and not is_open:
            time.sleep(TICK_S)
        if writable:
            waiting = waiting[connection.send(waiting) :]
    with open(report, "w") as output:
        print(f"served worst={link.worst} bytes={total}", file=output)
    connection.close()


def send(address, port, seconds, rate):
    connection = socket.create_connection((address, int(port)), 30)
    link, block = Link(connection), os.urandom(CHUNK_BYTES)
    begin, sent, received, exact, is_open = time.monotonic(), 0, 0, True, True
    while received < sent or is_open:
        elapsed = time.monotonic() - begin
        if is_open and elapsed >= float(seconds):
            connection.shutdown(socket.SHUT_WR)
            is_open = False
        readable, writable = link.ready(is_open and sent < elapsed * float(rate))
        if readable:
            got = connection.recv(CHUNK_BYTES)
            if not got:
                break
            at = received % CHUNK_BYTES
            exact = exact and got == (block + block)[at : at + len(got)]
            received += len(got)
        if writable and is_open:
            at = sent % CHUNK_BYTES
            sent += connection.send(block[at:])
    is_complete = exact and received == sent and sent > 0
    print(f"sent exact={is_complete} worst={link.worst} bytes={sent}")


{"serve": serve, "send": send}[sys.argv[1]](*sys.argv[2:])
