"""Captures the packets of the network that could leak, and finds marks on connections that must use TLS.

To check the tap itself, a mark is sent in clear to a separate port from time to time. If the tap
misses it, the run fails. It also fails if the kernel dropped a packet because the tap was too slow:
therefore a filter in the kernel drops what cannot be a leak (`packet_filter.py`), and the tap's thread has
priority over the load.
"""

import os
import socket
import threading
import time

import packet_filter
from load import MARK

ALL_PROTOCOLS = 0x0003
CONTROL_MARK = MARK + b"control-"
CONTROL_WAIT_MAX_S = 30
# Size of the receive buffer, above the kernel's usual limit (SO_RCVBUFFORCE); the kernel doubles it.
BUFFER_BYTES = 512 << 20
SO_RCVBUFFORCE = 33
# The largest packet: segments that the kernel has not split yet.
PACKET_BYTES_MAX = packet_filter.WHOLE_PACKET
# The buffer lasts for some seconds of load: the tap runs before the processes that it observes. Every
# real-time priority does.
REAL_TIME_PRIORITY = 1
# PACKET_STATISTICS of SOL_PACKET: tp_packets, tp_drops.
SOL_PACKET, PACKET_STATISTICS, STATISTICS_BYTES = 263, 6, 8
# Every packet is on `lo`, which shows it twice: as sent and as received.
PACKET_IGNORE_OUTGOING = 23


class Tap:
    def __init__(self, clear_ports, control_port: int):
        self.clear_ports = frozenset(clear_ports)
        self.control_port = control_port
        self.packets = self.controls_sent = 0
        self.controls = set()
        self.leaks = []
        self.lost = 0
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        packet_filter.attach(self.socket, self.clear_ports)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        except PermissionError:
            # Root in a user namespace has the usual limit; dropped packets are counted.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        self.listener = socket.create_server(("127.0.0.1", control_port))
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        try:
            # 0: the calling thread alone; processes that other threads start do not inherit it.
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(REAL_TIME_PRIORITY))
        except PermissionError:
            pass  # Root in a user namespace; dropped packets are counted.
        buffer = bytearray(PACKET_BYTES_MAX)
        while True:
            size = self.socket.recv_into(buffer)
            self.packets += 1
            if buffer.find(MARK, 0, size) >= 0:
                self.look(bytes(buffer[:size]))

    def look(self, packet: bytes):
        ports = ports_of(packet)
        if CONTROL_MARK in packet and self.control_port in ports:
            at = packet.index(CONTROL_MARK) + len(CONTROL_MARK)
            self.controls.add(packet[at:])
        elif not self.clear_ports & set(ports):
            at = packet.index(MARK)
            self.leaks.append(f"ports {ports}: {packet[at:at + 40]!r}")

    def prove(self):
        """Sends a mark in clear, which the tap must detect."""
        self.controls_sent += 1
        number = b"%d" % self.controls_sent
        with socket.create_connection(("127.0.0.1", self.control_port)) as sock:
            accepted, _ = self.listener.accept()
            sock.sendall(CONTROL_MARK + number)
            accepted.recv(64)
            accepted.close()
        until = time.monotonic() + CONTROL_WAIT_MAX_S
        while number not in self.controls and time.monotonic() < until:
            time.sleep(0.01)
        return number in self.controls

    def dropped(self) -> int:
        """The number of packets that the kernel dropped."""
        statistics = self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, STATISTICS_BYTES)
        self.lost += int.from_bytes(statistics[4:8], "little")
        return self.lost


def ports_of(packet: bytes):
    """Both ports of a TCP or UDP packet with an Ethernet header; () for other packets."""
    kind = packet[12:14]
    if kind == b"\x08\x00" and packet[23] in (6, 17):
        at = 14 + 4 * (packet[14] & 15)
    elif kind == b"\x86\xdd" and packet[20] in (6, 17):
        at = 54
    else:
        return ()
    return tuple(int.from_bytes(packet[one : one + 2], "big") for one in (at, at + 2))
