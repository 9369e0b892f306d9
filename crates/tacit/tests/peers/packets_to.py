"""Appends the packets that are sent to addresses to a file: packets_to.py FILE ADDRESS...

It sees all interfaces, and ends at the first UDP packet to one of the addresses.
"""
import ipaddress
import socket
import sys

UDP = 17
addresses = {ipaddress.ip_address(text).packed for text in sys.argv[2:]}
wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
with open(sys.argv[1], "ab", buffering=0) as counted:
    while True:
        packet, (_, ether_type, *_) = wire.recvfrom(65536)
        if ether_type == 0x0800:
            protocol, to = packet[9], packet[16:20]
        elif ether_type == 0x86DD:
            protocol, to = packet[6], packet[24:40]
        else:
            continue
        if to in addresses:
            if protocol == UDP:
                break
            counted.write(packet)
