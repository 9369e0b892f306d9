# Misbehaves as a server of links of another kernel: argv[1] is the path of the socket of a link.
import json
import socket
import struct
import sys
import time

path = sys.argv[1]
MESSAGE, DATA, END, RESET, DATAGRAM, NOTICE, ALIVE = range(1, 8)


def dial():
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(10)
    stream.connect(path)
    return stream


def frame(kind, payload=b""):
    return struct.pack(">BH", kind, len(payload)) + payload


def message(content):
    return frame(MESSAGE, json.dumps(content).encode())


def answer(stream):
    try:
        head = stream.recv(3, socket.MSG_WAITALL)
        if len(head) < 3:
            return None
        kind, length = struct.unpack(">BH", head)
        payload = stream.recv(length, socket.MSG_WAITALL) if length else b""
        return json.loads(payload) if kind == MESSAGE else (kind, payload)
    except (ConnectionResetError, BrokenPipeError):
        return None


def ask(content):
    with dial() as stream:
        stream.sendall(message(content))
        return answer(stream)


def open_request(session, port=8080, kind="connected"):
    return {"open": {"session": session, "kind": kind, "address": f"10.9.8.7:{port}"}}


def hello(name):
    stream = dial()
    stream.sendall(message({"hello": {"version": 1, "run": name}}))
    return stream, answer(stream)["welcome"]["session"]


# Kinds and lengths that are wrong, and what is no request.
for bad in [
    b"\x08\0\0", b"\xff" * 8, frame(MESSAGE), b"\x01\xff\xff" + b"x" * 70000, frame(MESSAGE, b"{}"),
    frame(MESSAGE, b"null"), frame(DATA, b"x"), frame(END), frame(RESET, b"\0\0\0\x68"), frame(NOTICE, b"\x09\0\0\0\0"),
]:
    with dial() as stream:
        try:
            stream.sendall(bad)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert answer(stream) is None, bad
# What only a link within one kernel serves.
assert "refused" in ask("status")
assert "refused" in ask({"listening": {"session": 1, "address": "10.9.8.7:8099", "order": "listen"}})
# Streams that end in the middle of a request.
for cut in range(0, 12):
    with dial() as stream:
        stream.sendall(message({"hello": {"version": 1, "run": "x"}})[:cut])
# A version, sessions and clients that do not exist.
assert "version" in ask({"hello": {"version": 99, "run": "x"}})["refused"]
assert "does not know this run" in ask(open_request(4711))["refused"]
assert "wait" in ask({"take": {"session": 1, "ticket": 4711}})["refused"]
# A session that its own peer has ended.
control, ended = hello("short")
control.close()
time.sleep(0.2)
assert "does not know this run" in ask(open_request(ended))["refused"]
# The wrong frame on the stream of a session ends it.
control, _ = hello("strange")
control.sendall(frame(DATA, b"x"))
assert answer(control) is None
# A flood of requests, of which half are given up before the answer.
control, session = hello("flood")
streams = []
for number in range(600):
    stream = dial()
    stream.sendall(message(open_request(session, kind=["connected", "datagrams"][number // 2 % 2])))
    if number % 2:
        stream.close()
    else:
        streams.append(stream)
for stream in streams:
    said = answer(stream)
    assert said is not None and ("connected" in said or "refused" in said), said
# The wrong frame among the bytes of a socket.
for stream in streams:
    try:
        stream.sendall(frame(DATA, b"GET / ") + frame(ALIVE) + b"\0\0\0")
    except (BrokenPipeError, ConnectionResetError):
        pass
    stream.close()
control.close()
# The end of a session ends its sockets.
control, session = hello("ends")
time.sleep(0.2)
stream = dial()
stream.sendall(message(open_request(session)))
assert "connected" in answer(stream)
control.close()
assert answer(stream) is None
print("done")
