# Misbehaves as the server of a link within one kernel: answers three runs wrongly, then each request for a
# socket in another wrong way. argv: the path of its socket; "hands" if programs shall connect sockets themselves.
import itertools
import json
import os
import socket
import struct
import sys

WELCOME = {
    "version": 1, "link": "lies", "session": 7, "ipv4": True, "ipv6": False, "sockets-max": 1000,
    "resolvers": [], "hands": sys.argv[2:] == ["hands"],
}


def frame(text):
    return struct.pack(">I", len(text)) + text


def message(content):
    return frame(json.dumps(content).encode())


# A version, a length, and an end in the middle.
WRONG_WELCOMES = [
    message({"welcome": {**WELCOME, "version": 99}}), b"\xff" * 8, message({"welcome": WELCOME})[:20],
]
# Answers that never bring a socket, and answers with descriptors that are no connection to the address.
LIES = [
    b"", b"\xff" * 8, struct.pack(">I", 5_000_000) + b"x" * 100_000, frame(b"{}"), frame(b"null"),
    message("socket"), message("socket")[:6], message("done"), message({"welcome": WELCOME}),
    message({"connected": "10.9.8.7:8080"}), message({"failed": 0}), message({"failed": -1}),
    message({"failed": 99999}), message({"refused": "no"}),
]
pipe = os.pipe()
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listening = socket.create_server(("127.0.0.1", 0))
unconnected = socket.socket()
WRONG_DESCRIPTORS = [
    [pipe[0]], [pipe[1], pipe[0]], [datagram.fileno()], [listening.fileno()], [unconnected.fileno()],
    [0, 1, 2], [os.open("/dev/null", os.O_RDWR)], [os.open("/proc/self", os.O_PATH)],
]
if WELCOME["hands"]:
    # That is what a program gets.
    WRONG_DESCRIPTORS.remove([unconnected.fileno()])
welcomes = iter(WRONG_WELCOMES)
NETLINK_SOCK_DIAG = 4
reporting = [socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) for number in range(2)]
usages = itertools.chain(
    [[], [pipe[0], pipe[1]], [listening.fileno()] * 2], itertools.repeat([one.fileno() for one in reporting])
)
answers = itertools.cycle([(lie, []) for lie in LIES] + [(message("socket"), wrong) for wrong in WRONG_DESCRIPTORS])
runs = []


def serve(stream):
    length = struct.unpack(">I", stream.recv(4, socket.MSG_WAITALL))[0]
    request = json.loads(stream.recv(length, socket.MSG_WAITALL))
    if "open" in request:
        text, descriptors = next(answers)
        if text:
            sent = socket.send_fds(stream, [text], descriptors)
            stream.sendall(text[sent:])
    elif "usage" in request:
        socket.send_fds(stream, [message("usage")], next(usages))
    elif "hello" in request and (wrong := next(welcomes, None)):
        stream.sendall(wrong)
    elif "hello" in request:
        stream.sendall(message({"welcome": WELCOME}))
        # The run lasts as long as its stream.
        runs.append(stream)
        return
    stream.close()


server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen(500)
while True:
    accepted, _ = server.accept()
    try:
        serve(accepted)
    except OSError:
        accepted.close()
