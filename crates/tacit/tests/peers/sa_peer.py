"""A peer with manual SAs that echoes, implemented by scapy: sa_peer.py KEYS-IN KEYS-OUT INTEGRITY

Receives ESP in UDP at 10.99.0.2 port 4500 from 10.99.0.1, with the SPIs 0x1002 (received) and 0x1001
(sent). Answers UDP datagrams and ICMP echo requests inside. The files have the format of tacit.
"""

import socket
import sys

from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.ipsec import ESP, SecurityAssociation

NEAR, FAR = "10.99.0.1", "10.99.0.2"


def association(spi, file, integrity, source, destination):
    with open(file) as keys:
        lines = [line.strip() for line in keys if not line.startswith("#")]
    key, auth_key = map(bytes.fromhex, lines)
    return SecurityAssociation(
        ESP,
        spi=spi,
        crypt_algo="AES-CBC",
        crypt_key=key,
        auth_algo=integrity,
        auth_key=auth_key,
        tunnel_header=IP(src=source, dst=destination),
    )


inbound = association(0x1002, sys.argv[1], sys.argv[3], NEAR, FAR)
outbound = association(0x1001, sys.argv[2], sys.argv[3], FAR, NEAR)
underlay = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
underlay.bind((FAR, 4500))
print("ready", flush=True)
sequence = 0
ivs = set()
while True:
    datagram, sender = underlay.recvfrom(65535)
    outer = IP(src=NEAR, dst=FAR, proto=50) / ESP(datagram)
    iv = datagram[8:24]
    assert iv not in ivs, "an IV was used twice"
    ivs.add(iv)
    # Raises an exception if the ICV is wrong.
    inner = inbound.decrypt(outer)
    assert inner.haslayer(IP), inner.summary()
    answer = IP(src=inner.dst, dst=inner.src)
    if UDP in inner:
        answer /= UDP(sport=inner[UDP].dport, dport=inner[UDP].sport) / bytes(inner[UDP].payload)
    elif ICMP in inner:
        echo = inner[ICMP]
        answer /= ICMP(type=0, id=echo.id, seq=echo.seq) / bytes(echo.payload)
    else:
        continue
    sequence += 1
    sealed = outbound.encrypt(answer, seq_num=sequence)
    underlay.sendto(bytes(sealed[ESP]), sender)
