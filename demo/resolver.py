"""The DNS resolver of the demonstration: resolves the given names and no others.

    resolver.py ADDRESS NAME=ADDRESS...

Supports UDP and IPv4 addresses only.
"""

import ipaddress
import socket
import sys

PORT = 53
A = 1
NO_SUCH_NAME = 3
SECONDS_TO_LIVE = 60


def question(query):
    """The name and type in a query's question, and the position of its end."""
    at, labels = 12, []
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels).lower(), int.from_bytes(query[at + 1 : at + 3], "big"), at + 5


def answer(query, names):
    name, kind, end = question(query)
    found = [names[name]] if name in names and kind == A else []
    failure = 0 if name in names else NO_SUCH_NAME
    counts = [1, len(found), 0, 0]
    numbers = [0x8180 | failure, *counts]
    header = query[:2] + b"".join(number.to_bytes(2, "big") for number in numbers)
    record = b"\xc0\x0c\0\1\0\1" + SECONDS_TO_LIVE.to_bytes(4, "big") + b"\0\4"
    return header + query[12:end] + b"".join(record + address.packed for address in found)


def main(address, words):
    pairs = (word.split("=") for word in words)
    names = {name: ipaddress.IPv4Address(text) for name, text in pairs}
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, PORT))
    while True:
        query, client = server.recvfrom(4096)
        server.sendto(answer(query, names), client)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
