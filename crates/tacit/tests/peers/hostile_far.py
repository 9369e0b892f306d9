# Misbehaves as the server of links that has the network. argv: the path of its socket, a file for
# what it got, what it does:
#   refuse    refuses runs with a text that controls terminals
#   misplace  binds another address than the requested one
#   arrive    reports clients that arrived at 10.9.8.7:8099, then 200 at its own address
#   lie       answers three runs wrongly, then each request for a socket in another wrong way
import itertools
import json
import socket
import struct
import sys
import threading

path, out, work = sys.argv[1:4]
MESSAGE, DATA, END, RESET, DATAGRAM, NOTICE, ALIVE = range(1, 8)
WELCOME = {
    "version": 1, "link": "far", "session": 7, "ipv4": True, "ipv6": False, "sockets-max": 1000,
    "resolvers": [],
}
taken = []


def frame(kind, payload=b""):
    return struct.pack(">BH", kind, len(payload)) + payload


def message(content):
    return frame(MESSAGE, json.dumps(content).encode())


CONNECTED = message({"connected": "10.9.8.7:50000"})
# A version, lengths, and an end in the middle.
WRONG_WELCOMES = [
    message({"welcome": {**WELCOME, "version": 99}}), b"\xff" * 8, message({"welcome": WELCOME})[:20],
]
# In place of an answer, then after one.
LIES = [
    b"", b"\x08\0\0", b"\xff" * 8, b"\x01\xff\xff" + b"x" * 70000, frame(MESSAGE), frame(MESSAGE, b"{}"),
    frame(MESSAGE, b"null"), frame(DATA, b"x"), frame(END), frame(RESET, b"\0\0\0\x68"),
    CONNECTED[:9], message("socket"), message("done"), message({"welcome": WELCOME}),
    message({"failed": 0}), message({"failed": -1}), message({"failed": 99999}),
    CONNECTED + CONNECTED, CONNECTED + b"\x02\xff\xff" + b"x" * 70000, CONNECTED + frame(DATAGRAM, b"x"),
    CONNECTED + frame(NOTICE, b"\x09\0\0\0\0"), CONNECTED + frame(RESET, b"\xff" * 4),
    CONNECTED + frame(DATA, b"x")[:3], CONNECTED + frame(END) + frame(DATA, b"x"), CONNECTED + b"\x08",
]
welcomes, lies = iter(WRONG_WELCOMES), itertools.cycle(LIES)


def receive(stream):
    head = stream.recv(3, socket.MSG_WAITALL)
    if len(head) < 3:
        raise ConnectionError
    kind, length = struct.unpack(">BH", head)
    payload = stream.recv(length, socket.MSG_WAITALL) if length else b""
    return kind, payload


def obey(stream, address):
    if work == "misplace":
        stream.sendall(message({"connected": "10.9.8.7:8099"}))
    else:
        stream.sendall(message({"connected": address}))
    while True:
        order = json.loads(receive(stream)[1])
        stream.sendall(message("done"))
        if order == "listen" and work == "arrive":
            for ticket in range(205):
                local = address if ticket >= 5 else "10.9.8.7:8099"
                client = {"ticket": ticket, "peer": f"10.66.66.66:{2000 + ticket}", "local": local}
                stream.sendall(message({"arrived": client}))


def serve(stream):
    request = json.loads(receive(stream)[1])
    if "hello" in request and work == "lie" and (wrong := next(welcomes, None)):
        stream.sendall(wrong)
    elif "open" in request and work == "lie":
        stream.sendall(next(lies))
    elif "hello" in request:
        if work == "refuse":
            stream.sendall(message({"refused": "no\x1b]0;owned\x07\x1b[2J\nroot@host# \u202e" + "x" * 3000}))
            return
        stream.sendall(message({"welcome": WELCOME}))
        while receive(stream)[0] == ALIVE:
            stream.sendall(frame(ALIVE))
    elif "open" in request:
        obey(stream, request["open"]["address"])
    elif "take" in request:
        # Never answered, so the client is being connected for as long as the other side waits.
        taken.append(request["take"]["ticket"])
        with open(out, "w") as file:
            print(len(taken), min(taken) >= 5, file=file)
        receive(stream)


def serve_quietly(stream):
    try:
        serve(stream)
    except OSError:
        pass
    finally:
        stream.close()


listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(500)
while True:
    stream, _ = listener.accept()
    threading.Thread(target=serve_quietly, args=(stream,), daemon=True).start()
