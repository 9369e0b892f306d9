"""Sets options that may change where a socket sends.

routes.py VERSION after|before  sends to a permitted server by a denied address; the option is set
                                after or before `connect`
routes.py options               sets such options on a connected socket and on others
"""
import socket
import struct
import sys

# IPv4 options without effect.
NO_OPERATIONS = bytes([1] * 4)
GOOD = {4: ("10.9.8.7", 7000), 6: ("2001:db8::7", 7000)}
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
IP_OPTIONS, MCAST_JOIN_GROUP, IP_UNICAST_IF = 4, 42, 50
IPV6_2292PKTOPTIONS, IPV6_PKTINFO, IPV6_RTHDR, IPV6_TCLASS = 6, 50, 57, 67
SO_DONTROUTE, SO_BINDTODEVICE, SO_BINDTOIFINDEX = 5, 25, 62


def source_route():
    """Leads packets to 192.0.2.1 first: a loose source route. New kernels require CAP_NET_RAW."""
    return bytes([131, 7, 4]) + socket.inet_aton("192.0.2.1") + b"\0"


def routing_header():
    """Leads packets to 2001:db8:ff::1 first: a segment routing header."""
    return struct.pack("!BBBBBBH", 0, 4, 4, 1, 1, 0, 0) + bytes(16) + socket.inet_pton(
        socket.AF_INET6, "2001:db8:ff::1")


def lead(s, version):
    if version == 4:
        s.setsockopt(socket.IPPROTO_IP, IP_OPTIONS, source_route())
    else:
        s.setsockopt(socket.IPPROTO_IPV6, IPV6_RTHDR, routing_header())


def forget_route(s, version):
    """The kernel looks for the route again."""
    if version == 4:
        s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x10)
    else:
        s.setsockopt(socket.IPPROTO_IPV6, IPV6_TCLASS, 0x10)


def send(version, when):
    s = socket.socket(FAMILY[version])
    s.settimeout(1)
    error = None
    if when == "before":
        lead(s, version)
    s.connect(GOOD[version])
    if when == "after":
        try:
            lead(s, version)
        except OSError as refused:
            error = refused
        forget_route(s, version)
    s.sendall(b"MARK")
    if error:
        echoed = s.recv(4, socket.MSG_WAITALL)
        return f"{type(error).__name__} {error.errno}, then {echoed.decode()}"
    return "sent"


def try_to(name, do):
    try:
        do()
        print(f"{name}: ok", flush=True)
    except OSError as error:
        print(f"{name}: {type(error).__name__} {error.errno}", flush=True)


def options():
    sol, ip, ip6 = socket.SOL_SOCKET, socket.IPPROTO_IP, socket.IPPROTO_IPV6
    index = struct.pack("=I", socket.if_nametoindex("lo"))
    group = struct.pack("@I4xHH4s120x", 1, socket.AF_INET, 0, socket.inet_aton("239.1.2.3"))
    of_ipv4 = [
        ("IP_OPTIONS", ip, IP_OPTIONS, NO_OPERATIONS),
        ("IP_OPTIONS none", ip, IP_OPTIONS, b""),
        ("IP_UNICAST_IF", ip, IP_UNICAST_IF, struct.pack("!I", 1)),
        ("MCAST_JOIN_GROUP", ip, MCAST_JOIN_GROUP, group),
        ("SO_DONTROUTE", sol, SO_DONTROUTE, 1),
        ("SO_BINDTODEVICE", sol, SO_BINDTODEVICE, b"lo\0"),
        ("SO_BINDTOIFINDEX", sol, SO_BINDTOIFINDEX, index),
        ("IP_TOS", ip, socket.IP_TOS, 0x10),
        ("IP_TTL", ip, socket.IP_TTL, 33),
        ("SO_KEEPALIVE", sol, socket.SO_KEEPALIVE, 1),
    ]
    of_ipv6 = [
        ("IPV6_RTHDR", ip6, IPV6_RTHDR, routing_header()),
        ("IPV6_2292PKTOPTIONS", ip6, IPV6_2292PKTOPTIONS, b""),
        ("IPV6_PKTINFO", ip6, IPV6_PKTINFO, bytes(20)),
        ("IP_OPTIONS", ip, IP_OPTIONS, NO_OPERATIONS),
        ("IPV6_TCLASS", ip6, IPV6_TCLASS, 0x10),
    ]
    for version, all_options in (4, of_ipv4), (6, of_ipv6):
        connected = socket.create_connection(GOOD[version], 10)
        for name, *option in all_options:
            try_to(f"handed {name}", lambda: connected.setsockopt(*option))
        connected.sendall(b"1234")
        print(f"echoed {connected.recv(4, socket.MSG_WAITALL).decode()}", flush=True)
    for name, *option in of_ipv4:
        tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
        try_to(f"own {name}", lambda: tcp.setsockopt(*option))
        try_to(f"UDP {name}", lambda: udp.setsockopt(*option))


if sys.argv[1] == "options":
    options()
else:
    try:
        print(send(int(sys.argv[1]), sys.argv[2]))
    except OSError:
        print("not sent")
