# Misbehaves as the other side of a link: argv[1] is the path of its socket.
import json
import os
import socket
import struct
import sys
import time

path = sys.argv[1]


def dial():
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(10)
    stream.connect(path)
    return stream


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


def ask(message):
    with dial() as stream:
        stream.sendall(frame(message))
        return answer(stream)


def open_request(session, port=80, kind="connected"):
    return {"open": {"session": session, "kind": kind, "address": f"10.9.8.7:{port}"}}


# Lengths that are wrong, and what is no request.
for bad in [b"\xff" * 8, struct.pack(">I", 5000) + b"x" * 5000, b"\0\0\0\2{}", b"\0\0\0\4null", frame("close")]:
    with dial() as stream:
        stream.sendall(bad)
        assert answer(stream) is None, bad
# Descriptors without a request for them.
with dial() as stream:
    socket.send_fds(stream, [frame("status")], [0, 1, 2])
    assert answer(stream)["status"]["name"] == "guest"
# Streams that end in the middle of a request.
for cut in range(0, 12):
    with dial() as stream:
        stream.sendall(frame("status")[:cut])
# A version, a name and a session that do not exist.
assert "version" in ask({"hello": {"version": 99, "run": "x"}})["refused"]
assert "name" in ask({"hello": {"version": 1, "run": "x" * 65}})["refused"]
assert "name" in ask({"hello": {"version": 1, "run": "a\nb"}})["refused"]
assert "does not know this run" in ask(open_request(4711))["refused"]
# A session that its own peer has ended.
with dial() as hello:
    hello.sendall(frame({"hello": {"version": 1, "run": "short"}}))
    ended = answer(hello)["welcome"]["session"]
time.sleep(0.2)
assert "does not know this run" in ask(open_request(ended))["refused"]
# A flood of requests, of which half are given up before the answer.
hello = dial()
hello.sendall(frame({"hello": {"version": 1, "run": "flood"}}))
session = answer(hello)["welcome"]["session"]
streams = []
for number in range(600):
    stream = dial()
    stream.sendall(frame(open_request(session, kind="datagrams" if number % 3 else "bound")))
    if number % 2:
        stream.close()
    else:
        streams.append(stream)
for stream in streams:
    said = answer(stream)
    assert said == "socket" or "refused" in said, said
    stream.close()
hello.close()
# More sockets than the link may have.
hello = dial()
hello.sendall(frame({"hello": {"version": 1, "run": "many"}}))
session = answer(hello)["welcome"]["session"]
held, limited = [], 0
for number in range(40):
    with dial() as stream:
        stream.sendall(frame(open_request(session, 8080)))
        message, descriptors, _, _ = socket.recv_fds(stream, 4096, 1)
        held += descriptors
        limited += b"this is the limit" in message
print("held", len(held), "limited", limited)
for descriptor in held:
    os.close(descriptor)
hello.close()
