"""The peers of the flood test: an echo server, and the sockets of a flood.

    peers.py echo HOST PORT
    peers.py flood KIND HOST PORT SOCKETS ADDRESSES

Both print a line when they are ready, and end when their standard input is closed. The sockets have
the addresses 127.1.0.1, 127.1.0.2 and so on. KIND:

    silent       sends nothing
    half         sends the first half of a ClientHello
    half-once    the same; closed sockets are not opened again
"""

import errno
import os
import select
import socket
import ssl
import sys
import threading
import time

# So many closed sockets are opened again in each interval.
AGAIN_S = 0.1
AGAIN_MAX = 25
OPENED_AT_ONCE = 100
IP_BIND_ADDRESS_NO_PORT = 24


def echo(host: str, port: int):
    listener = socket.create_server((host, port), backlog=1024)
    print("ready", flush=True)
    threading.Thread(target=wait_for_end_of_input, daemon=True).start()
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    open_sockets = {}
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                accepted, _ = listener.accept()
                open_sockets[accepted.fileno()] = accepted
                poll.register(accepted, select.EPOLLIN)
                continue
            try:
                data = open_sockets[number].recv(4096)
                if data:
                    open_sockets[number].sendall(data)
            except OSError:
                data = b""
            if not data:
                open_sockets.pop(number).close()


def wait_for_end_of_input():
    sys.stdin.read()
    # The main thread waits in poll().
    os._exit(0)


def half_hello() -> bytes:
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(received, sent, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = sent.read()
    return hello[: len(hello) // 2]


class Flood:
    def __init__(self, kind: str, to, addresses: int):
        self.to = to
        self.first = b"" if kind == "silent" else half_hello()
        self.sources = [f"127.1.{number // 250}.{1 + number % 250}" for number in range(addresses)]
        self.poll = select.epoll()
        self.open = {}
        self.opened = 0

    def add(self):
        new = socket.socket()
        new.setblocking(False)
        new.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        new.bind((self.sources[self.opened % len(self.sources)], 0))
        self.opened += 1
        failed = new.connect_ex(self.to)
        if failed not in (0, errno.EINPROGRESS):
            raise OSError(failed, "cannot connect")
        self.open[new.fileno()] = new
        self.poll.register(new, select.EPOLLOUT)

    def turn(self, seconds: float):
        """Waits for events for at most this long: sockets that are connected, or were closed."""
        for number, events in self.poll.poll(seconds):
            one = self.open[number]
            try:
                if events & (select.EPOLLERR | select.EPOLLHUP):
                    raise OSError
                if events & select.EPOLLOUT:
                    if self.first:
                        one.send(self.first)
                    self.poll.modify(number, select.EPOLLIN)
                elif not one.recv(4096):
                    raise OSError
            except OSError:
                self.open.pop(number).close()


def flood(kind: str, host: str, port: int, count: int, addresses: int):
    running = Flood(kind, (host, port), addresses)
    while running.opened < count:
        for _ in range(min(OPENED_AT_ONCE, count - running.opened)):
            running.add()
        running.turn(0)
    running.turn(0.2)
    print("ready", flush=True)
    again = time.monotonic() + AGAIN_S
    while not select.select([sys.stdin], [], [], 0)[0]:
        running.turn(max(0, again - time.monotonic()))
        if time.monotonic() >= again and kind != "half-once":
            again += AGAIN_S
            for _ in range(min(AGAIN_MAX, count - len(running.open))):
                running.add()


if __name__ == "__main__":
    _, mode, *words = sys.argv
    if mode == "echo":
        echo(words[0], int(words[1]))
    else:
        flood(words[0], words[1], *map(int, words[2:]))
