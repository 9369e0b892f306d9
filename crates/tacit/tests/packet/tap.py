"""Writes all packets of an interface to a capture: tap.py INTERFACE FILE."""
import signal
import socket
import struct
import sys
import time

interface, path = sys.argv[1:]
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
tap.bind((interface, 0))
tap.settimeout(0.1)
ends = []
signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
with open(path, "wb") as capture:
    capture.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
    print("ready", flush=True)
    while True:
        try:
            packet = tap.recv(65535)
        except socket.timeout:
            if ends:
                break
            continue
        # The beginning suffices, except for packets that are decrypted.
        now = time.time()
        kept = packet[:2000]
        capture.write(struct.pack("<IIII", int(now), int(now % 1 * 1e6), len(kept), len(packet)))
        capture.write(kept)
