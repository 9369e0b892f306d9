"""A peer with manual SAs without UDP that echoes, implemented by scapy.

  raw_sa_peer.py PROTOCOL MODE VERSION KEYS-IN KEYS-OUT INTEGRITY [attack | options]

PROTOCOL is ah or esp, MODE tunnel or transport, VERSION 4 or 6: that of the underlay. Receives at
10.99.0.2 or 2001:db8:99::2 with the SPI 0x1002, and sends with 0x1001. Answers UDP datagrams and
ICMP echo requests inside. With `attack`, sends forged packets before the first answer; with
`options`, answers have IP options or extension headers.
"""

import socket
import sys

from scapy.layers.inet import ICMP, IP, UDP, IPOption
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, PadN, RouterAlert
from scapy.layers.ipsec import AH, ESP, SecurityAssociation
from scapy.packet import raw

PROTOCOL, MODE, VERSION = sys.argv[1:4]
NUMBER = {"esp": 50, "ah": 51}[PROTOCOL]
LAYER = {"esp": ESP, "ah": AH}[PROTOCOL]
OUTER, ETHERTYPE = (IP, 0x0800) if VERSION == "4" else (IPv6, 0x86DD)
FAMILY = socket.AF_INET if VERSION == "4" else socket.AF_INET6
NEAR, FAR = ("10.99.0.1", "10.99.0.2") if VERSION == "4" else ("2001:db8:99::1", "2001:db8:99::2")


def header(source, destination, number=0):
    # The kernel writes another identification in place of 0, which the ICV of AH covers.
    return IP(src=source, dst=destination, id=number + 1) if OUTER is IP else IPv6(
        src=source, dst=destination
    )


def association(spi, file, source, destination):
    with open(file) as keys:
        lines = [bytes.fromhex(line.strip()) for line in keys if not line.startswith("#")]
    options = {"auth_algo": sys.argv[6], "auth_key": lines[-1]}
    if LAYER is ESP:
        options |= {"crypt_algo": "AES-CBC", "crypt_key": lines[0]}
    if MODE == "tunnel":
        options["tunnel_header"] = header(source, destination)
    return SecurityAssociation(LAYER, spi=spi, **options)


inbound = association(0x1002, sys.argv[4], NEAR, FAR)
outbound = association(0x1001, sys.argv[5], FAR, NEAR)
# Without a socket of the protocol, the kernel would answer that it does not know the protocol.
silent = socket.socket(FAMILY, socket.SOCK_RAW, NUMBER)
silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
capture = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETHERTYPE))
capture.bind(("w1", ETHERTYPE))
sender = socket.socket(FAMILY, socket.SOCK_RAW, socket.IPPROTO_RAW)


def send(packet):
    sender.sendto(raw(packet), (NEAR, 0))


def answer_to(inner):
    """The echo of a packet; None: it is not for the echo."""
    back = type(inner)(src=inner.dst, dst=inner.src)
    if type(inner) is IP:
        back.id = 9
    if UDP in inner:
        payload = bytes(inner[UDP].payload)
        return back / UDP(sport=inner[UDP].dport, dport=inner[UDP].sport) / payload
    if ICMP in inner and inner[ICMP].type == 8:
        echo = inner[ICMP]
        return back / ICMP(type=0, id=echo.id, seq=echo.seq) / bytes(echo.payload)
    return None


def forge(answer):
    """Sends packets that must be dropped: each reason of another number of them."""
    sealed = raw(outbound.encrypt(answer.copy(), seq_num=1))
    at = 20 if OUTER is IP else 40

    def changed(place, value=1):
        packet = bytearray(sealed)
        packet[place] ^= value
        send(OUTER(bytes(packet)))

    # integrity: a flipped bit in the content, in the sequence number and in the ICV.
    changed(len(sealed) - 1)
    changed(at + (11 if LAYER is AH else 7), 2)
    changed(at + 12 + 8)
    # unknown-spi.
    spi_at = at + (4 if LAYER is AH else 0)
    changed(spi_at + 3, 8)
    changed(spi_at + 3, 9)
    # malformed: truncated. The kernel writes the lengths of IPv4 itself.
    short = header(FAR, NEAR, 5) / bytes(sealed[at : at + 20])
    if OUTER is IP:
        short.proto = NUMBER
    else:
        short.nh = NUMBER
    send(short)
    # outer-address: of another sender.
    forged = OUTER(sealed)
    forged.src = "10.99.0.77" if OUTER is IP else "2001:db8:99::77"
    if OUTER is IP:
        del forged.chksum
    for _ in range(4):
        send(forged)
    # replayed.
    for _ in range(6):
        send(OUTER(sealed))
    print("forged", flush=True)


def with_options(packet):
    """A packet of transport mode with options, some of which routers change."""
    if OUTER is IP:
        # The kernel of the receiver writes its address into the recorded route.
        record_route = IPOption(b"\x07\x07\x04\x00\x00\x00\x00")
        packet.options = [IPOption(b"\x94\x04\x00\x00"), record_route]
        del packet.ihl, packet.len, packet.chksum
        return IP(raw(packet))
    hop = IPv6ExtHdrHopByHop(options=[RouterAlert(), PadN(optdata=b"")])
    last = IPv6ExtHdrDestOpt(options=[PadN(optdata=b"\x00" * 4)])
    return IPv6(src=packet.src, dst=packet.dst) / hop / last / packet.payload


print("ready", flush=True)
sequence = 0
attacks = "attack" in sys.argv
while True:
    frame, _ = capture.recvfrom(65535)
    packet = OUTER(frame)
    is_ours = packet.src == NEAR and (packet.proto if OUTER is IP else packet.nh) == NUMBER
    if not is_ours:
        continue
    # Raises an exception if the ICV is wrong.
    inner = inbound.decrypt(packet)
    inner = IP(raw(inner)) if MODE == "tunnel" else OUTER(raw(inner))
    answer = answer_to(inner)
    if answer is None:
        continue
    if attacks:
        forge(answer)
        attacks, sequence = False, 1
        continue
    sequence += 1
    if "options" in sys.argv:
        answer = with_options(answer)
    sealed = outbound.encrypt(answer, seq_num=sequence)
    send(sealed)
