"""How connections that cannot be made look: refusals.py ADDRESS:PORT...

For each it connects and reads, connects and writes late, and connects without waiting.
"""

import errno
import select
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor


def try_to(call, *arguments):
    try:
        return call(*arguments) or "ok"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


def opened(address):
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    stream = socket.socket(family)
    # A time limit of Python's own would make the socket one that does not wait.
    for limit in socket.SO_RCVTIMEO, socket.SO_SNDTIMEO:
        stream.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", 8, 0))
    return stream, try_to(stream.connect, address)


def wait_for_end(stream):
    poll = select.poll()
    poll.register(stream, 0)
    poll.poll(20_000)


def read(address):
    stream, connected = opened(address)
    # A reset may arrive before `connect` returns.
    return f"read {try_to(stream.recv, 1) if connected == 'ok' else connected}"


def write(address):
    stream, connected = opened(address)
    wait_for_end(stream)
    first = try_to(stream.send, b"x") if connected == "ok" else connected
    return f"write {first} {try_to(stream.send, b'x')}"


def eager(address):
    stream = socket.socket()
    stream.setblocking(False)
    connected = try_to(stream.connect, address)
    poll = select.poll()
    poll.register(stream, select.POLLOUT)
    poll.poll(20_000)
    wait_for_end(stream)
    error = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return f"eager {connected} {errno.errorcode.get(error, error)}"


def look(target):
    host, port = target.rsplit(":", 1)
    address = host.strip("[]"), int(port)
    _, connected = opened(address)
    seen = [f"{target} connect {connected}"]
    if connected == "ok":
        with ThreadPoolExecutor() as all_ways:
            seen += all_ways.map(lambda way: way(address), [read, write, eager])
    return " ".join(seen)


with ThreadPoolExecutor(20) as all_targets:
    for line in all_targets.map(look, sys.argv[1:]):
        print(line)
