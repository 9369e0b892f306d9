"""A resolver with a zone file: names.py ZONE LOG ADDRESS...

Listens on port 53 of each address for datagrams and streams. A line of the zone is a name, a type
(A, AAAA, CNAME, PTR), a value and a TTL, or 60 without one. An answer that is longer than EDNS allows, or than 512 bytes
without, is cut. The log has a line for each question: transport, type, name in lower case. The
file $RAW_LOG, if that is set, gets each query in hexadecimal digits.
"""

import ipaddress
import os
import socket
import struct
import sys
import threading

TYPES = {"A": 1, "CNAME": 5, "PTR": 12, "AAAA": 28}
zone_file, log_file, *addresses = sys.argv[1:]
log = open(log_file, "a", buffering=1)
raw = open(os.environ.get("RAW_LOG", os.devnull), "a", buffering=1)


def wire(name):
    labels = (label.encode() for label in name.split("."))
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def zone():
    """The records by name, read again when the file has changed."""
    state = os.stat(zone_file)
    stamp = (state.st_ino, state.st_mtime_ns, state.st_size)
    if zone.stamp != stamp:
        zone.stamp, zone.names = stamp, {}
        for line in open(zone_file):
            own, what, value, *ttl = line.split()
            zone.names.setdefault(own, []).append((own, what, value, int(*ttl or [60])))
    return zone.names


zone.stamp = None


def records(name, kind):
    while True:
        found = zone().get(name, [])
        yield from (one for one in found if TYPES[one[1]] in (kind, 5))
        aliases = [value for _, what, value, _ in found if what == "CNAME"]
        if not aliases:
            return
        name = aliases[0]


def answer(query, transport):
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    (kind,) = struct.unpack(">H", query[at + 1 : at + 3])
    name, question = ".".join(labels).lower(), query[12 : at + 5]
    raw.write(query.hex() + "\n")
    log.write(f"{transport} {kind} {name}\n")
    known = name in zone()
    body, count = b"", 0
    for own, what, value, ttl in records(name, kind):
        data = wire(value) if what in ("CNAME", "PTR") else ipaddress.ip_address(value).packed
        body += wire(own) + struct.pack(">HHIH", TYPES[what], 1, ttl, len(data)) + data
        count += 1
    flags = 0x8180 if known else 0x8183
    bytes_max = struct.unpack(">H", query[at + 8 : at + 10])[0] if query[11] else 512
    if transport == "udp" and 12 + len(question) + len(body) > bytes_max:
        flags, body, count = flags | 0x0200, b"", 0
    return query[:2] + struct.pack(">HHHHH", flags, 1, count, 0, 0) + question + body


def datagrams(server):
    while True:
        query, client = server.recvfrom(4096)
        server.sendto(answer(query, "udp"), client)


def streams(server):
    while True:
        client, _ = server.accept()
        stream = client.makefile("rwb")
        while len(length := stream.read(2)) == 2:
            said = answer(stream.read(struct.unpack(">H", length)[0]), "tcp")
            stream.write(struct.pack(">H", len(said)) + said)
            stream.flush()


for address in addresses:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for kind, serve in ((socket.SOCK_DGRAM, datagrams), (socket.SOCK_STREAM, streams)):
        server = socket.socket(family, kind)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        server.bind((address, 53))
        if kind == socket.SOCK_STREAM:
            server.listen()
        threading.Thread(target=serve, args=(server,)).start()
open(log_file + ".ready", "w").close()
