"""The far end of sockets.py: sockets_server.py PORT, at 10.9.8.7.

A connection's first line says what is to happen on it and a number under which to report what was
seen; a line `report NUMBER` on another connection asks for that.
"""

import hashlib
import socket
import struct
import sys
import threading

PATTERN = bytes(range(251)) * 8
reports = {}
reported = threading.Condition()


def read_to_end(stream):
    """What arrives, as its size and hash, and how it ends."""
    size, sha = 0, hashlib.sha256()
    try:
        while data := stream.recv(1 << 18):
            size += len(data)
            sha.update(data)
        return f"{size} {sha.hexdigest()[:12]} end"
    except OSError as error:
        return f"{size} {sha.hexdigest()[:12]} {type(error).__name__}"


def reset(stream):
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


def send(stream, size):
    for at in range(0, size, len(PATTERN)):
        stream.sendall(PATTERN[: size - at])


def answer_at_the_end(stream):
    seen = read_to_end(stream)
    send(stream, 100_000)
    return seen


def answer_nothing(stream):
    return read_to_end(stream)


def end_first(stream):
    send(stream, 1000)
    stream.shutdown(socket.SHUT_WR)
    return read_to_end(stream)


def reset_at_once(stream):
    reset(stream)
    return "reset"


def send_then_reset(stream):
    send(stream, 1000)
    stream.recv(1)
    reset(stream)
    return "reset"


def echo(stream):
    try:
        while data := stream.recv(1 << 18):
            stream.sendall(data)
        return "end"
    except OSError as error:
        return type(error).__name__


def both_ways(stream):
    size = 64 << 20
    sender = threading.Thread(target=lambda: (send(stream, size), stream.shutdown(socket.SHUT_WR)))
    sender.start()
    seen = read_to_end(stream)
    sender.join()
    return seen


def greet(stream):
    stream.sendall(b"220 ready\r\n")
    return read_to_end(stream)


def close_at_once(stream):
    stream.close()
    return "closed"


def urgent(stream):
    stream.sendall(b"before")
    stream.send(b"!", socket.MSG_OOB)
    stream.sendall(b"behind")
    stream.shutdown(socket.SHUT_WR)
    got = b""
    while data := stream.recv(100):
        got += data
    return got.decode()


def serve(stream):
    stream.settimeout(30)
    order = b""
    while not order.endswith(b"\n"):
        byte = stream.recv(1)
        if not byte:
            return
        order += byte
    what, number = order.decode().split()
    if what == "report":
        with reported:
            reported.wait_for(lambda: number in reports, 20)
            stream.sendall(reports.pop(number, "nothing").encode())
    else:
        seen = globals()[what](stream)
        with reported:
            reports[number] = seen
            reported.notify_all()
    stream.close()


listener = socket.create_server(("10.9.8.7", int(sys.argv[1])), backlog=100)
while True:
    accepted, _ = listener.accept()
    threading.Thread(target=serve, args=(accepted,), daemon=True).start()
