"""A resolver on 127.0.0.1 that knows some names: resolver.py PORT NAME ADDRESS [NAME ADDRESS]...

It makes the file resolver.ready once it answers. A name may stand there with several addresses. An
address has its first name.
"""

import ipaddress
import socket
import struct
import sys

A, PTR, AAAA = 1, 12, 28
known = {}
for name, address in zip(sys.argv[2::2], sys.argv[3::2]):
    address = ipaddress.ip_address(address)
    kind = A if address.version == 4 else AAAA
    known.setdefault(name, {}).setdefault(kind, []).append(address.packed)
    target = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    known.setdefault(address.reverse_pointer, {PTR: [target]})

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", int(sys.argv[1])))
open("resolver.ready", "w").close()
while True:
    query, client = server.recvfrom(4096)
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    (kind,) = struct.unpack(">H", query[at + 1 : at + 3])
    name = ".".join(labels).lower()
    addresses = known.get(name, {}).get(kind, [])
    answer = b"".join(
        b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 60, len(address)) + address
        for address in addresses
    )
    flags = 0x8180 if name in known else 0x8183
    header = query[:2] + struct.pack(">HHHHH", flags, 1, len(addresses), 0, 0)
    server.sendto(header + query[12 : at + 5] + answer, client)
