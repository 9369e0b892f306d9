"""Questions by hand: ask.py udp|tcp SERVER NAME TYPE [NAME TYPE]...

All by one socket; says for each the response code and how many answers there are.
"""

import socket
import struct
import sys

transport, server, *words = sys.argv[1:]
family = socket.AF_INET6 if ":" in server else socket.AF_INET
asked = socket.socket(family, socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM)
asked.settimeout(10)
asked.connect((server, 53))
for number, (name, kind) in enumerate(zip(words[::2], words[1::2])):
    wire = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query = struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0)
    query += wire + b"\0" + struct.pack(">HH", int(kind), 1)
    if transport == "udp":
        asked.send(query)
        said = asked.recv(4096)
    else:
        asked.send(struct.pack(">H", len(query)) + query)
        stream = asked.makefile("rb")
        said = stream.read(struct.unpack(">H", stream.read(2))[0])
        stream.close()
    got, flags, _, answers = struct.unpack(">HHHH", said[:8])
    assert got == number
    print(f"{name} {kind}: code {flags & 15}, {answers} answers")
