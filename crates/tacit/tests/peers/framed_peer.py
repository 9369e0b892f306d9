# Misbehaves as a server of links of another kernel: argv[1] is the path of the socket of a link.
import select
import socket
import time

from link_wire import MESSAGE, Wire, frame, framed_answer, message, open_request

DATA, END, RESET, DATAGRAM, NOTICE, ALIVE = range(2, 8)


def answer(stream):
    try:
        return framed_answer(stream)
    except (ConnectionResetError, BrokenPipeError):
        return None


wire = Wire(message, answer)
# Kinds and lengths that are wrong, and what is no request.
for bad in [
    b"\x08\0\0", b"\xff" * 8, frame(MESSAGE), b"\x01\xff\xff" + b"x" * 70000, frame(MESSAGE, b"{}"),
    frame(MESSAGE, b"null"), frame(DATA, b"x"), frame(END), frame(RESET, b"\0\0\0\x68"), frame(NOTICE, b"\x09\0\0\0\0"),
]:
    assert wire.is_not_answered(bad), bad
# What only a link within one kernel serves.
for request in ["status", {"listening": {"session": 1, "address": "10.9.8.7:8099", "order": "listen"}}]:
    assert "refused" in wire.ask(request), request
wire.end_within({"hello": {"version": 1, "run": "x"}})
wire.name_what_does_not_exist()
assert "already closed" in wire.ask({"take": {"session": 1, "ticket": 4711}})["refused"]
# Kinds of sockets that only a link within one kernel has.
control, session = wire.hello("kinds")
for kind in ["datagrams-of-all", "bound-again"]:
    assert "this kind" in wire.ask(open_request(session, 8080, kind))["refused"], kind
control.close()
# The wrong frame on the stream of a session ends it.
control, _ = wire.hello("strange")
control.sendall(frame(DATA, b"x"))
assert answer(control) is None
control, session = wire.hello("flood")
streams = wire.flood(session, 8080, lambda number: ["connected", "datagrams"][number // 2 % 2])
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
# A reset after the end of the same direction resets the socket too.
control, session = wire.hello("reset after end")
with socket.create_server(("10.9.8.7", 8094)) as listener:
    time.sleep(0.2)
    stream = wire.send(open_request(session, 8094))
    assert "connected" in answer(stream)
    served = listener.accept()[0]
    stream.sendall(frame(END))
    served.settimeout(10)
    assert served.recv(1) == b""
    stream.sendall(frame(RESET, b"\0\0\0\x68"))
    reset = select.poll()
    reset.register(served, 0)
    assert reset.poll(10_000), "the socket was not reset"
    served.close()
stream.close()
control.close()
# The end of a session ends its sockets.
control, session = wire.hello("ends")
time.sleep(0.2)
stream = wire.send(open_request(session))
assert "connected" in answer(stream)
control.close()
assert answer(stream) is None
print("done")
