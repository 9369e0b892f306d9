"""What a program sees of its sockets, a line for each thing it tries: sockets.py HOST PORT.

The far end is sockets_server.py.
"""

import errno
import fcntl
import hashlib
import os
import select
import socket
import struct
import sys
import termios
import threading
import time

host, port = sys.argv[1], int(sys.argv[2])
address = socket.gethostbyname(host)
numbers = iter(range(1_000_000))
start = f"{os.getpid()}-{time.monotonic_ns()}"
PATTERN = bytes(range(251)) * 8


def connect(what, before=None, family=socket.AF_INET):
    stream = socket.socket(family)
    stream.settimeout(30)
    if before:
        before(stream)
    stream.connect((address, port))
    return stream, order(stream, what)


def order(stream, what):
    number = f"{start}-{next(numbers)}"
    stream.sendall(f"{what} {number}\n".encode())
    return number


def report(number):
    """What the far end has seen of a connection."""
    with socket.create_connection((address, port), 30) as stream:
        stream.sendall(f"report {number}\n".encode())
        return b"".join(iter(lambda: stream.recv(100), b"")).decode()


def try_to(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, error)


def read_to_end(stream):
    size, sha = 0, hashlib.sha256()
    try:
        while data := stream.recv(1 << 18):
            size += len(data)
            sha.update(data)
        return f"{size} {sha.hexdigest()[:12]} end"
    except OSError as error:
        return f"{size} {sha.hexdigest()[:12]} {errno.errorcode[error.errno]}"


def send(stream, size):
    for at in range(0, size, len(PATTERN)):
        stream.sendall(PATTERN[: size - at])


def reset(stream):
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


def events(stream, wanted, until):
    """Polls until all of some events are there."""
    poll = select.poll()
    poll.register(stream, wanted)
    end, seen = time.monotonic() + 20, 0
    while seen & until != until and time.monotonic() < end:
        seen = dict(poll.poll(1000)).get(stream.fileno(), 0)
        time.sleep(0.005)
    names = ["IN", "PRI", "OUT", "ERR", "HUP", "RDHUP"]
    return [name for name in names if seen & getattr(select, f"POLL{name}")]


def the_clients_end_goes_first():
    stream, number = connect("answer_at_the_end")
    send(stream, 100_000)
    stream.shutdown(socket.SHUT_WR)
    yield read_to_end(stream), report(number)


def the_servers_end_goes_first():
    stream, number = connect("end_first")
    yield read_to_end(stream)
    yield events(stream, select.POLLIN | select.POLLRDHUP | select.POLLOUT, select.POLLRDHUP)
    send(stream, 100_000)
    stream.shutdown(socket.SHUT_WR)
    yield events(stream, select.POLLIN, select.POLLHUP)
    yield report(number)


def the_servers_reset():
    stream, number = connect("reset_at_once")
    yield report(number), read_to_end(stream), try_to(stream.send, b"x"), try_to(stream.recv, 1)
    stream, number = connect("reset_at_once")
    yield report(number), events(stream, select.POLLIN, select.POLLERR)
    yield errno.errorcode[stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)]
    stream, number = connect("send_then_reset")
    got = stream.recv(1000, socket.MSG_WAITALL)
    stream.send(b"x")
    yield len(got), report(number), read_to_end(stream)


def the_clients_reset():
    stream, number = connect("echo")
    stream.send(b"x")
    yield stream.recv(1)
    reset(stream)
    yield report(number)
    stream, number = connect("echo")
    stream.send(b"x")
    events(stream, select.POLLIN, select.POLLIN)
    stream.close()
    yield "closed with bytes unread", report(number)


def a_close_right_behind_the_bytes():
    for size in 1, 1_000_000:
        stream, number = connect("answer_nothing")
        send(stream, size)
        stream.close()
        yield report(number)
    linger = struct.pack("ii", 1, 20)
    stream, number = connect(
        "answer_nothing", lambda s: s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    )
    send(stream, 1_000_000)
    stream.close()
    yield report(number)


def writing_to_a_server_that_has_closed():
    stream, number = connect("close_at_once")
    yield report(number), stream.recv(1)
    for _ in range(200):
        error = try_to(stream.send, b"x")
        if error != 1:
            break
        time.sleep(0.01)
    yield error, try_to(stream.recv, 1)


def names():
    stream, _ = connect("echo")
    yield stream.getpeername(), stream.getsockname() == stream.getsockname()
    yield stream.getsockname()[0] not in ("0.0.0.0", "127.0.0.1"), stream.getsockname()[1] > 0
    stream, _ = connect("echo", lambda s: s.bind(("", 23456)))
    yield stream.getpeername(), stream.getsockname()[1]
    stream = socket.socket(socket.AF_INET6)
    stream.connect((f"::ffff:{address}", port))
    order(stream, "echo")
    stream.send(b"mapped")
    yield stream.getpeername()[:2], stream.recv(6, socket.MSG_WAITALL)


def options():
    tcp, ip, sol = socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.SOL_SOCKET
    wanted = [
        (sol, "SO_KEEPALIVE", 1), (sol, "SO_SNDBUF", 50_000), (sol, "SO_RCVBUF", 60_000),
        (sol, "SO_REUSEADDR", 1), (sol, "SO_REUSEPORT", 1), (sol, "SO_RCVLOWAT", 5),
        (sol, "SO_PRIORITY", 3), (sol, "SO_OOBINLINE", 1), (sol, "SO_DONTROUTE", 0),
        (tcp, "TCP_NODELAY", 1), (tcp, "TCP_KEEPIDLE", 77), (tcp, "TCP_KEEPINTVL", 7),
        (tcp, "TCP_KEEPCNT", 3), (tcp, "TCP_USER_TIMEOUT", 9000), (tcp, "TCP_SYNCNT", 2),
        (tcp, "TCP_DEFER_ACCEPT", 1), (tcp, "TCP_WINDOW_CLAMP", 60_000), (tcp, "TCP_CORK", 0),
        (tcp, "TCP_NOTSENT_LOWAT", 16384), (ip, "IP_TOS", 0x10), (ip, "IP_TTL", 33),
    ]
    def set_all(stream):
        for level, name, value in wanted:
            stream.setsockopt(level, getattr(socket, name), value)
    stream, _ = connect("echo", set_all)
    for level, name, _ in wanted:
        yield name, stream.getsockopt(level, getattr(socket, name))
    for name in "SO_TYPE", "SO_DOMAIN", "SO_PROTOCOL", "SO_ERROR", "SO_ACCEPTCONN":
        yield name, stream.getsockopt(sol, getattr(socket, name))
    stream.setsockopt(tcp, socket.TCP_CONGESTION, b"reno")
    yield stream.getsockopt(tcp, socket.TCP_CONGESTION, 16).rstrip(b"\0")
    yield "TCP_INFO", stream.getsockopt(tcp, socket.TCP_INFO, 1)
    stream.sendall(b"12345")
    yield stream.recv(5, socket.MSG_WAITALL)
    stream.close()


def looking_before_reading():
    stream, _ = connect("greet")
    events(stream, select.POLLIN, select.POLLIN)
    yield stream.recv(3, socket.MSG_PEEK), stream.recv(4, socket.MSG_PEEK)
    yield struct.unpack("i", fcntl.ioctl(stream, termios.FIONREAD, bytes(4)))
    yield stream.recv(11, socket.MSG_WAITALL)
    stream.setblocking(False)
    yield try_to(stream.recv, 1)
    stream.settimeout(30)
    stream.shutdown(socket.SHUT_WR)
    yield stream.recv(1)


def connecting_without_waiting():
    stream = socket.socket()
    stream.setblocking(False)
    poll = select.epoll()
    poll.register(stream, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    yield sorted(poll.poll(0)) == [(stream.fileno(), select.EPOLLOUT | select.EPOLLHUP)]
    yield errno.errorcode[stream.connect_ex((address, port))]
    yield poll.poll(20) == [(stream.fileno(), select.EPOLLOUT)]
    yield stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    yield [stream.connect_ex((address, port)) for _ in range(3)]
    order(stream, "greet")
    events(stream, select.POLLIN, select.POLLIN)
    yield stream.recv(3)


def connecting_twice():
    stream, _ = connect("echo")
    yield try_to(stream.connect, (address, port)), try_to(stream.connect, ("10.9.8.6", 1))
    stream.send(b"x")
    yield stream.recv(1), try_to(stream.listen), try_to(stream.bind, ("", 0))


def small_writes():
    stream, _ = connect("echo")
    yield stream.send(b""), os.write(stream.fileno(), b"")
    stream.sendmsg([b"", b"a", b"", b"bc"])
    yield stream.recv(3, socket.MSG_WAITALL)
    sent = b"".join(bytes([i % 256]) * (i % 7) for i in range(3000))
    def write():
        for i in range(3000):
            stream.sendall(bytes([i % 256]) * (i % 7))
        stream.shutdown(socket.SHUT_WR)
    writer = threading.Thread(target=write)
    writer.start()
    got = b"".join(iter(lambda: stream.recv(1000), b""))
    writer.join()
    yield got == sent


def a_file_is_sent():
    stream, number = connect("answer_nothing")
    with open("/etc/services", "rb") as file:
        yield os.sendfile(stream.fileno(), file.fileno(), 0, 1 << 20)
    stream.shutdown(socket.SHUT_WR)
    yield read_to_end(stream), report(number)


def opening_with_data():
    """TCP Fast Open: the connection is made by the first bytes."""
    stream = socket.socket()
    number = f"{start}-{next(numbers)}"
    first = f"echo {number}\nfirst".encode()
    yield stream.sendto(first, socket.MSG_FASTOPEN, (address, port)) == len(first)
    yield stream.recv(5, socket.MSG_WAITALL), stream.getpeername()
    stream.shutdown(socket.SHUT_RD)
    yield stream.recv(1)


def its_own_loopback():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as stream:
            accepted, peer = server.accept()
            yield peer == stream.getsockname(), accepted.getsockname() == stream.getpeername()
            stream.sendall(b"own")
            yield accepted.recv(3)
            accepted.close()
    yield try_to(socket.create_connection, ("127.0.0.1", 9))


def a_long_stream_each_way():
    stream, number = connect("both_ways")
    size = 64 << 20
    sender = threading.Thread(target=lambda: (send(stream, size), stream.shutdown(socket.SHUT_WR)))
    sender.start()
    yield read_to_end(stream)
    sender.join()
    yield report(number)


for story in [
    the_clients_end_goes_first, the_servers_end_goes_first, the_servers_reset, the_clients_reset,
    a_close_right_behind_the_bytes, writing_to_a_server_that_has_closed, names, options,
    looking_before_reading, connecting_without_waiting, connecting_twice, small_writes,
    a_file_is_sent, opening_with_data, its_own_loopback, a_long_stream_each_way,
]:
    for seen in story():
        print(f"{story.__name__}: {seen}", flush=True)
