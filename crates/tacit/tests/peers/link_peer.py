# Misbehaves as the other side of a link: argv[1] is the path of its socket.
import json
import os
import socket
import struct
import time

from link_wire import Wire, dial, open_request


def frame(message):
    text = json.dumps(message).encode()
    return struct.pack(">I", len(text)) + text


def answer(stream):
    try:
        length = stream.recv(4, socket.MSG_WAITALL)
        if len(length) < 4:
            return None
        return json.loads(stream.recv(struct.unpack(">I", length)[0], socket.MSG_WAITALL))
    except ConnectionResetError:
        return None


wire = Wire(frame, answer)
# Lengths that are wrong, and what is no request.
for bad in [b"\xff" * 8, struct.pack(">I", 5000) + b"x" * 5000, b"\0\0\0\2{}", b"\0\0\0\4null", frame("close")]:
    assert wire.is_not_answered(bad), bad
# Descriptors without a request for them.
with dial() as stream:
    socket.send_fds(stream, [frame("status")], [0, 1, 2])
    assert answer(stream)["status"]["name"] == "guest"
wire.end_within("status")
wire.name_what_does_not_exist()
for name in ["x" * 65, "a\nb"]:
    assert "name" in wire.ask({"hello": {"version": 1, "run": name}})["refused"]
hello, session = wire.hello("flood")
for stream in wire.flood(session, 80, lambda number: "datagrams" if number % 3 else "bound"):
    said = answer(stream)
    assert said == "socket" or "refused" in said, said
    stream.close()
hello.close()
# The sockets of the flood count until the kernel has reported their end.
for _ in range(200):
    if wire.ask("status")["status"]["sockets"] == 0:
        break
    time.sleep(0.05)
# More sockets than the link may have.
hello, session = wire.hello("many")
held, limited = [], 0
for number in range(40):
    with wire.send(open_request(session)) as stream:
        message, descriptors, _, _ = socket.recv_fds(stream, 4096, 1)
        held += descriptors
        limited += b"this is the limit" in message
print("held", len(held), "limited", limited)
for descriptor in held:
    os.close(descriptor)
hello.close()
