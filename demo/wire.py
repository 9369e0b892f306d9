"""A tap that needs no configuration: records every packet of one TCP port on loopback.

    wire.py PORT DIRECTORY

Writes the same files as tap.py, N.there and N.back, with the bytes in order, and creates
DIRECTORY/ready when it records. Needs CAP_NET_RAW. Supports IPv4 only.
"""

import itertools
import pathlib
import socket
import sys

EVERY_PROTOCOL = 0x0003
IPV4, TCP = 4, 6
SYN, ACK = 0x02, 0x10
SEEN_BYTES_MAX = 1 << 16
RECEIVE_BUFFER_BYTES = 8 << 20


class Direction:
    """The bytes of one direction of a connection, in order."""

    def __init__(self, path, first):
        self.file = open(path, "wb")
        self.next = first

    def take(self, sequence, data):
        behind = (self.next - sequence) % (1 << 32)
        # A retransmission: the bytes are known, completely or in part. Loopback keeps the order.
        data = data[behind:] if behind < 1 << 31 else data
        self.file.write(data)
        self.file.flush()
        self.next = (sequence + behind + len(data)) % (1 << 32)


def segment(packet):
    """The addresses, the sequence number, the flags and the payload of a TCP packet."""
    if packet[0] >> 4 != IPV4 or packet[9] != TCP:
        return None
    start = (packet[0] & 15) * 4
    length = int.from_bytes(packet[2:4], "big") or len(packet)
    tcp = packet[start:length]
    ports = int.from_bytes(tcp[0:2], "big"), int.from_bytes(tcp[2:4], "big")
    source, destination = (packet[12:16], ports[0]), (packet[16:20], ports[1])
    sequence = int.from_bytes(tcp[4:8], "big")
    return source, destination, sequence, tcp[13], tcp[(tcp[12] >> 4) * 4 :]


def main(port, directory):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(EVERY_PROTOCOL))
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    wire.bind(("lo", EVERY_PROTOCOL))
    (directory / "ready").touch()
    numbers, connections = itertools.count(1), {}
    while True:
        packet, about = wire.recvfrom(SEEN_BYTES_MAX)
        # On loopback each packet is captured twice, outgoing and incoming; one is enough.
        seen = segment(packet) if about[2] != socket.PACKET_OUTGOING else None
        if not seen or port not in (seen[0][1], seen[1][1]):
            continue
        source, destination, sequence, flags, data = seen
        if flags & SYN:
            there = not flags & ACK
            pair = (source, destination) if there else (destination, source)
            if there:
                connections[pair] = next(numbers)
            name = directory / f"{connections[pair]}.{'there' if there else 'back'}"
            connections[source, destination, "bytes"] = Direction(name, (sequence + 1) % (1 << 32))
        elif data:
            connections[source, destination, "bytes"].take(sequence, data)


if __name__ == "__main__":
    wire_directory = pathlib.Path(sys.argv[2])
    wire_directory.mkdir()
    main(int(sys.argv[1]), wire_directory)
