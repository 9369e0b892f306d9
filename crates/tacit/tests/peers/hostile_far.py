# Misbehaves as the server of links that has the network. argv: the path of its socket, a file for
# what it got, what it does:
#   refuse    refuses runs with a text that controls terminals
#   misplace  binds another address than the requested one
#   arrive    reports clients that arrived at 10.9.8.7:8099, then 200 at its own address
import json
import socket
import struct
import sys
import threading

path, out, work = sys.argv[1:4]
MESSAGE, DATA, ALIVE = 1, 2, 7
WELCOME = {
    "version": 1, "link": "far", "session": 7, "ipv4": True, "ipv6": False, "sockets-max": 1000,
    "resolvers": [],
}
taken = []


def message(content):
    payload = json.dumps(content).encode()
    return struct.pack(">BH", MESSAGE, len(payload)) + payload


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
    if "hello" in request:
        if work == "refuse":
            stream.sendall(message({"refused": "no\x1b]0;owned\x07\x1b[2J\nroot@host# \u202e" + "x" * 3000}))
            return
        stream.sendall(message({"welcome": WELCOME}))
        while receive(stream)[0] == ALIVE:
            stream.sendall(struct.pack(">BH", ALIVE, 0))
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
