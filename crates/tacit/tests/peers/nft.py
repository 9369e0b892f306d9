"""Reads and changes nftables rules of this network; the program nft may not be installed."""

import socket
import struct


def attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def nest(kind, *parts):
    return attribute(kind | 0x8000, b"".join(parts))


def number(kind, value):
    return attribute(kind, struct.pack(">I", value))


def text(kind, value):
    return attribute(kind, value.encode() + b"\0")


def expression(name, *parts):
    return nest(1, text(1, name), nest(2, *parts))


def compare(operation, value):
    return expression("cmp", number(1, 1), number(2, operation), nest(3, attribute(1, value)))


def message(kind, flags, body, family=2, resource=0):
    body = struct.pack(">BBH", family, 0, resource) + body
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body


def append(chain, hook, priority, expressions, kind="nat"):
    """Makes the chain at this hook, with this rule; returns the error numbers of the kernel."""
    at = nest(4, number(1, hook), number(2, priority & 0xffffffff))
    named = text(1, "nat") + text(2, chain)
    batch = b"".join([
        message(16, 1, b"", 0, 10),
        message(10 << 8 | 0, 0x405, text(1, "nat")),
        message(10 << 8 | 3, 0x405, text(1, "nat") + text(3, chain) + at + text(7, kind)),
        message(10 << 8 | 6, 0xc05, named + nest(4, *expressions)),
        message(17, 1, b"", 0, 10),
    ])
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    kernel.send(batch)
    # An answer to each of the three messages between the ends of the batch.
    return [-struct.unpack("=i", kernel.recv(4096)[16:20])[0] for _ in range(3)]


def attributes(data):
    """The attributes in this data, as pairs of kind and data."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind & 0x3fff, data[4:length]
        data = data[(length + 3) & ~3:]


def elements(table, name):
    """The elements of a set of an `inet` table: pairs of key and remaining time in milliseconds."""
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    kernel.send(message(10 << 8 | 13, 0x301, text(1, table) + text(2, name), 1))
    found = []
    while True:
        received = kernel.recv(1 << 16)
        while received:
            length, kind = struct.unpack_from("=IH", received)
            if kind in (2, 3):
                return found
            for element in (dict(attributes(one)) for part, listed in attributes(received[20:length])
                            if part == 3 for _, one in attributes(listed)):
                left = element.get(5)
                key = dict(attributes(element[1]))[1]
                found.append((key, struct.unpack(">Q", left)[0] if left else None))
            received = received[(length + 3) & ~3:]


def publish(chain, hook, port, instead, instead_port, address="192.0.2.1"):
    """What Docker does for `-p PORT:INSTEAD_PORT`, at this hook."""
    destination = expression("payload", number(1, 1), number(2, 1), number(3, 16), number(4, 4))
    protocol = expression("meta", number(1, 1), number(2, 16))
    to_port = expression("payload", number(1, 1), number(2, 2), number(3, 2), number(4, 2))
    return append(chain, hook, -100, [
        destination, compare(0, socket.inet_aton(address)),
        protocol, compare(0, bytes([6])),
        to_port, compare(0, struct.pack(">H", port)),
        expression("immediate", number(1, 1), nest(2, attribute(1, socket.inet_aton(instead)))),
        expression("immediate", number(1, 2), nest(2, attribute(1, struct.pack(">H", instead_port)))),
        expression("nat", number(1, 1), number(2, 2), number(3, 1), number(5, 2)),
    ])


def remove_rules(table):
    """What `nft flush table inet TABLE` does; returns the error number of the kernel."""
    batch = b"".join([
        message(16, 1, b"", 0, 10),
        message(10 << 8 | 8, 5, text(1, table), 1),
        message(17, 1, b"", 0, 10),
    ])
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    kernel.send(batch)
    return -struct.unpack("=i", kernel.recv(4096)[16:20])[0]


def add(table, name, key):
    """Adds an element to a set of an `inet` table; returns the error number of the kernel."""
    element = nest(3, nest(1, nest(1, attribute(1, key))))
    batch = b"".join([
        message(16, 1, b"", 0, 10),
        message(10 << 8 | 12, 0x405, text(1, table) + text(2, name) + element, 1),
        message(17, 1, b"", 0, 10),
    ])
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    kernel.send(batch)
    return -struct.unpack("=i", kernel.recv(4096)[16:20])[0]
