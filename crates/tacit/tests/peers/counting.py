"""Accepts connections at an address and port, and appends all bytes to a file."""
import socket
import sys

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
with open(sys.argv[3], "ab", buffering=0) as counted:
    while True:
        peer = listener.accept()[0]
        peer.settimeout(2)
        try:
            counted.write(b"C")
            counted.write(peer.recv(1000))
        except OSError:
            pass
        peer.close()
