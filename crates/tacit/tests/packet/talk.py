"""Unmodified programs: talk.py serve | talk.py check ADDRESS MEGABYTES."""
import hashlib
import os
import socket
import sys
import threading


def exactly(connection, count):
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise SystemExit("the stream ended early")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def serve_stream(connection):
    """Receives a length and as many bytes; sends their hash and the same bytes."""
    count = int.from_bytes(exactly(connection, 8), "big")
    data = exactly(connection, count)
    connection.sendall(hashlib.sha256(data).digest())
    connection.sendall(data)
    connection.close()


def serve():
    streams = socket.create_server(("::", 9301), family=socket.AF_INET6, dualstack_ipv6=True)
    datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    datagrams.bind(("::", 9302))

    def echo():
        while True:
            data, sender = datagrams.recvfrom(65535)
            datagrams.sendto(data, sender)

    threading.Thread(target=echo, daemon=True).start()
    print("ready", flush=True)
    while True:
        connection, _ = streams.accept()
        threading.Thread(target=serve_stream, args=(connection,), daemon=True).start()


def check_stream(address, megabytes):
    data = os.urandom(megabytes << 20)
    with socket.create_connection((address, 9301)) as connection:
        connection.sendall(len(data).to_bytes(8, "big"))
        connection.sendall(data)
        if exactly(connection, 32) != hashlib.sha256(data).digest():
            raise SystemExit("another stream arrived")
        if exactly(connection, len(data)) != data:
            raise SystemExit("another stream came back")


def check_datagrams(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(5)
        for length in [0, 100, 1300, 5000]:
            data = os.urandom(length)
            datagrams.sendto(data, (address, 9302))
            if datagrams.recv(65535) != data:
                raise SystemExit(f"another datagram of {length} bytes")


if sys.argv[1] == "serve":
    serve()
address, megabytes = sys.argv[2], int(sys.argv[3])
check_stream(address, megabytes)
if sys.argv[1] == "check":
    check_datagrams(address)
print("same")
