"""A resolver on 127.0.0.1:5353 that knows one name and its IPv4 address."""

import socket
import struct
import sys

name, address = sys.argv[1], socket.inet_aton(sys.argv[2])
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 5353))
open("resolver.ready", "w").close()
while True:
    query, client = server.recvfrom(4096)
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    (kind,) = struct.unpack(">H", query[at + 1 : at + 3])
    known = ".".join(labels).lower() == name
    answer = b""
    if known and kind == 1:
        answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + address
    flags = 0x8180 if known else 0x8183
    header = query[:2] + struct.pack(">HHHHH", flags, 1, bool(answer), 0, 0)
    server.sendto(header + query[12 : at + 5] + answer, client)
