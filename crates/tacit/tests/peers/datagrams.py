"""Datagrams: a server that echoes, and clients that say what they saw.

  datagrams.py serve ADDRESS PORT [LOG]    prints `ready`; echoes; `who` is answered with the sender's address;
                                           what it got is noted in LOG, one line each
  datagrams.py rounds ADDRESS PORT COUNT SIZE...
  datagrams.py many PORT ROUNDS ADDRESS...
  datagrams.py burst ADDRESS PORT COUNT
  datagrams.py see ADDRESS PORT
  datagrams.py unconnected ADDRESS PORT ADDRESS PORT
  datagrams.py error ADDRESS PORT SIZE
  datagrams.py path ADDRESS PORT SIZE COUNT
                                           sends datagrams that must not be fragmented, until the
                                           kernel refuses their size, and then COUNT that fit
  datagrams.py segments ADDRESS PORT
  datagrams.py transfers ADDRESS PORT FROM [FROM-PORT]
                                           answers each first datagram from another socket, and
                                           what comes to that one from there too
  datagrams.py transfer ADDRESS PORT [connected]
  datagrams.py answering ADDRESS PORT OTHER OTHER-PORT LOG
                                           answers `read` from the other address and port; writes
                                           to LOG a line with port and payload for each datagram
  datagrams.py both ADDRESS PORT COUNT     sends `read`, and waits for an answer; for each line of its
                                           input, sends COUNT datagrams to the source of the answer,
                                           and then COUNT to ADDRESS and PORT
  datagrams.py talk ADDRESS PORT           sends each line of its input, says what came of it
"""

import errno
import os
import select
import socket
import struct
import sys
import threading
import time

PATIENCE = 10
IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_RECVERR, IP_MTU = 10, 2, 11, 14
SOL_UDP, UDP_SEGMENT = 17, 103


def new(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.settimeout(PATIENCE)
    return made


def serve(address, port, log=None):
    server = new(address)
    server.settimeout(None)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    server.bind((address, int(port)))
    print("ready", flush=True)
    log = open(log, "a", buffering=1) if log else None
    while True:
        payload, client = server.recvfrom(65536)
        if log:
            log.write(f"{len(payload)} {payload[:20]!r}\n")
        server.sendto(client[0].encode() if payload == b"who" else payload, client)


def rounds(address, port, count, *sizes):
    for size in map(int, sizes):
        client = new(address)
        client.settimeout(2)
        client.connect((address, int(port)))
        lost = 0
        for number in range(int(count)):
            question = struct.pack(">I", number) + os.urandom(size - 4)
            client.send(question)
            try:
                while (answer := client.recv(65536))[:4] < question[:4]:
                    pass
                assert answer == question
            except TimeoutError:
                lost += 1
        print(f"{size} bytes: {lost} lost")


def many(port, count, *addresses):
    port, count, good = int(port), int(count), []

    def one(address, connected, number):
        client = new(address)
        if connected:
            client.connect((address, port))
        for at in range(count):
            question = f"{number} {connected} {at}".encode()
            client.send(question) if connected else client.sendto(question, (address, port))
            answer, source = client.recvfrom(100)
            assert source[:2] == (address, port), source
            good.append(answer == question)

    threads = [
        threading.Thread(target=one, args=(address, connected, number))
        for address in addresses
        for connected in (True, False)
        for number in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{sum(good)} of {len(threads) * count}")


def burst(address, port, count):
    client = new(address)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    client.connect((address, int(port)))
    for number in range(int(count)):
        client.send(struct.pack(">I", number) * 25)
    got = [struct.unpack(">I", client.recv(200)[:4])[0] for _ in range(int(count))]
    print("in order" if got == list(range(int(count))) else f"out of order: {got}")


def see(address, port):
    client = new(address)
    client.connect((address, int(port)))
    client.send(b"who")
    print("seen as", client.recv(100).decode())
    print("peer", *client.getpeername()[:2])
    client.send(b"again")
    print("from", *client.recvfrom(100)[1][:2])


def unconnected(*places):
    client = new(places[0])
    client.bind(("", 0))
    for place in zip(places[::2], map(int, places[1::2])):
        client.sendto(b"time?", place)
        answer, source = client.recvfrom(100)
        print(answer.decode(), "from", *source[:2])


def error(address, port, size):
    client = new(address)
    if ":" not in address:
        client.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        client.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    client.connect((address, int(port)))
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            client.send(bytes(int(size)))
            client.settimeout(0.5)
            client.recv(65536)
            print("answered")
            return
        except TimeoutError:
            continue
        except OSError as failure:
            print(errno.errorcode[failure.errno])
            if failure.errno == errno.EMSGSIZE:
                print("mtu", client.getsockopt(socket.IPPROTO_IP, IP_MTU))
            return
    print("nothing")


def path(address, port, size, count):
    version = (socket.IPPROTO_IPV6, 23, 24, 48) if ":" in address else (socket.IPPROTO_IP, 10, 14, 28)
    level, discover, mtu_name, header = version
    to = (address, int(port))
    for kind in "connected", "unconnected":
        client = new(address)
        client.settimeout(0.2)
        client.setsockopt(level, discover, IP_PMTUDISC_DO)
        if kind == "connected":
            client.connect(to)

        def fits(bytes_sent):
            try:
                client.send(bytes(bytes_sent)) if kind == "connected" else client.sendto(bytes(bytes_sent), to)
            except OSError as failure:
                assert failure.errno == errno.EMSGSIZE, failure
                return False
            return True

        def mtu():
            other = new(address)
            other.connect(to)
            return other.getsockopt(level, mtu_name)

        is_served = False
        while not is_served:
            try:
                client.send(bytes(1)) if kind == "connected" else client.sendto(bytes(1), to)
                is_served = client.recv(65536) == bytes(1)
            except OSError:
                time.sleep(0.1)
        until = time.monotonic() + PATIENCE
        while mtu() >= int(size) + header and time.monotonic() < until:
            fits(int(size))
            time.sleep(0.1)
        largest = mtu() - header
        # Errors that have arrived meanwhile come first, and the old route may be there for a moment.
        while time.monotonic() < until and not (fits(largest) and not fits(largest + 1)):
            time.sleep(0.1)
        answers = 0
        client.settimeout(2)
        for _ in range(int(count)):
            assert fits(largest), largest
            assert not fits(largest + 1), largest
            try:
                while len(client.recv(65536)) != largest:
                    pass
                answers += 1
            except TimeoutError:
                pass
        print(f"{kind}: mtu {largest + header}, {answers} of {count}")


def segments(address, port):
    client = new(address)
    client.setsockopt(SOL_UDP, UDP_SEGMENT, 1200)
    client.connect((address, int(port)))
    client.send(bytes(6000))
    print(*(len(client.recv(65536)) for _ in range(5)))


def transfers(address, port, source, source_port=0):
    server = new(address)
    server.settimeout(None)
    server.bind((address, int(port)))
    while True:
        _, client = server.recvfrom(100)
        transfer_socket = new(address)
        transfer_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        transfer_socket.settimeout(2)
        transfer_socket.bind((source, int(source_port)))
        transfer_socket.sendto(b"block", client)
        try:
            _, again = transfer_socket.recvfrom(100)
            same = again == client
            transfer_socket.sendto(b"the same client" if same else b"another client", client)
        except TimeoutError:
            pass
        transfer_socket.close()


def transfer(address, port, connected=None):
    client = new(address)
    client.settimeout(2)
    if connected:
        client.connect((address, int(port)))
    try:
        client.send(b"read") if connected else client.sendto(b"read", (address, int(port)))
        block, source = client.recvfrom(100)
        port_is = "the same port" if source[1] == int(port) else "another port"
        print(block.decode(), "from", source[0], port_is)
        client.sendto(b"acknowledged", source)
        print("acknowledged:", client.recv(100).decode())
    except TimeoutError:
        print("nothing")


def answering(address, port, other_address, other_port, log):
    log = open(log, "a", buffering=1)
    asked, other = new(address), new(other_address)
    asked.bind((address, int(port)))
    other.bind((other_address, int(other_port)))
    while True:
        for ready in select.select([asked, other], [], [])[0]:
            payload, client = ready.recvfrom(100)
            log.write(f"{ready.getsockname()[1]} {payload.decode()}\n")
            if payload == b"read":
                other.sendto(b"block", client)


def both(address, port, count):
    client = new(address)
    asked = (address, int(port))
    client.sendto(b"read", asked)
    _, other = client.recvfrom(100)
    print("from", "there" if other == asked else "elsewhere", flush=True)
    for _ in sys.stdin:
        for to in other, asked:
            for number in range(int(count)):
                client.sendto(f"late {number}".encode(), to)
        print("sent", flush=True)


def talk(address, port):
    client = new(address)
    client.connect((address, int(port)))
    for line in sys.stdin:
        try:
            client.send(line.strip().encode())
            print("got", client.recv(100).decode(), flush=True)
        except OSError as failure:
            print(errno.errorcode.get(failure.errno, failure), flush=True)


globals()[sys.argv[1]](*sys.argv[2:])
