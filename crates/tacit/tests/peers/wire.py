"""Counts the packets on an interface until SIGTERM, by kind: wire.py INTERFACE OUTPUT

Prints one line for each kind: `sent` or `received`, and then `udp-4500`, `tcp PORT` (the lower
port), `udp PORT` or `ip PROTOCOL`. Neighbour discovery is not counted. When an agent has ended, the
kernel answers datagrams for its port 4500 with an ICMP error: `udp-4500-error`.
"""
import collections, select, signal, socket, struct, sys

PACKET_OUTGOING = 4
counts = collections.Counter()
running = True


def stop(*_):
    global running
    running = False


def kind(frame):
    (ethertype,) = struct.unpack("!H", frame[12:14])
    if ethertype == 0x0800:
        header = (frame[14] & 15) * 4
        protocol, rest = frame[23], frame[14 + header :]
    elif ethertype == 0x86DD:
        protocol, rest = frame[20], frame[54:]
        if protocol in (0, 58):
            return None
    else:
        return None
    if protocol in (6, 17):
        ports = sorted(struct.unpack("!HH", rest[:4]))
        if protocol == 17 and 4500 in ports:
            return "udp-4500"
        return f"{'tcp' if protocol == 6 else 'udp'} {ports[0]}"
    if protocol == 1 and rest[0] == 3:
        quoted = frame[:14] + rest[8:]
        return "udp-4500-error" if kind(quoted) == "udp-4500" else "ip 1"
    return f"ip {protocol}"


signal.signal(signal.SIGTERM, stop)
capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
capture.bind((sys.argv[1], 0))
capture.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
capture.setblocking(False)
open(sys.argv[2] + ".ready", "w").close()
while running:
    if not select.select([capture], [], [], 0.1)[0]:
        continue
    try:
        while True:
            frame, address = capture.recvfrom(128)
            found = kind(frame)
            if found:
                counts[("sent " if address[2] == PACKET_OUTGOING else "received ") + found] += 1
    except BlockingIOError:
        pass
with open(sys.argv[2], "w") as output:
    for name, count in sorted(counts.items()):
        print(name, count, file=output)
