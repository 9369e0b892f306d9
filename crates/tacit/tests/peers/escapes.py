"""Tries to reach a denied address with a socket that was connected to a permitted one."""
import ctypes
import os
import select
import socket
import struct

DENIED = ("192.0.2.1", 8085)
GOOD = ("10.9.8.7", 7000)
CLOSED = ("10.9.8.7", 81)
MSG_FASTOPEN = 0x20000000
TCP_FASTOPEN_CONNECT = 30
SO_NETNS_COOKIE = 71
libc = ctypes.CDLL(None, use_errno=True)


def failed():
    """A socket that is unconnected again after its connection was refused."""
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(CLOSED)
    select.select([], [s], [], 2)
    s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    s.settimeout(2)
    return s


def network(s):
    return s.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)


def send(s):
    s.send(b"escaped")
    return s.recv(10)


def plain():
    s = socket.socket()
    s.settimeout(2)
    s.connect(DENIED)
    return send(s)


def again():
    s = failed()
    s.connect_ex(DENIED)
    s.connect(DENIED)
    return send(s)


def unspecified():
    s = socket.create_connection(GOOD)
    libc.connect(s.fileno(), b"\0" * 16, 16)
    s.settimeout(2)
    s.connect(DENIED)
    return send(s)


def long_address():
    s = failed()
    s.setblocking(True)
    address = struct.pack("=HH4s102x", 2, socket.htons(DENIED[1]), socket.inet_aton(DENIED[0]))
    libc.connect(s.fileno(), address, len(address))
    if libc.connect(s.fileno(), address, len(address)):
        raise ConnectionRefusedError(ctypes.get_errno(), "")
    return send(s)


def fast_open():
    s = failed()
    s.connect_ex(CLOSED)
    s.setblocking(True)
    s.sendto(b"escaped", MSG_FASTOPEN, DENIED)
    return s.recv(10)


def listen():
    s = failed()
    s.listen()
    return s.getsockname()


def bound():
    s = failed()
    s.bind(("0.0.0.0", 0))
    if network(s) != network(socket.socket()):
        return "has an address of the host"
    s.connect_ex(DENIED)
    s.connect(DENIED)
    return send(s)


def deferred():
    s = failed()
    s.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
    s.connect_ex(DENIED)
    s.connect_ex(DENIED)
    return send(s)


def passed_to_a_child():
    s = failed()
    if os.fork() == 0:
        s.connect_ex(DENIED)
        try:
            s.connect(DENIED)
            send(s)
        except OSError:
            pass
        os._exit(0)
    os.wait()
    s.connect(DENIED)
    return send(s)


def permitted():
    s = failed()
    s.setblocking(True)
    s.connect_ex(GOOD)
    s.connect(GOOD)
    s.sendall(b"1")
    return "works" if s.recv(1) == b"1" else "END"


for attempt in (plain, again, unspecified, long_address, fast_open, listen, bound, deferred,
                passed_to_a_child, permitted):
    name = attempt.__name__.replace("_", " ")
    try:
        print(f"{name}: {attempt()}", flush=True)
    except ConnectionRefusedError:
        print(f"{name}: ConnectionRefusedError", flush=True)
    except OSError as error:
        print(f"{name}: {type(error).__name__} {error.errno}", flush=True)
