"""A TLS peer of the tests: Python's ssl module. Its arguments and what it says are those of
peer.go; but having ended its direction, it cannot read on. And besides:

    peer.py server cut       100,000 bytes, then the end without close_notify
    peer.py server smtp      a server that speaks first, in clear
    peer.py server smtps     the same under TLS
    peer.py smtp PORT...     a client of such a server, in clear
"""

import smtplib
import socket
import ssl
import sys
import threading

CHUNK = 50_000


def context(identity, version):
    role = ssl.PROTOCOL_TLS_SERVER if identity == "localhost" else ssl.PROTOCOL_TLS_CLIENT
    made = ssl.SSLContext(role)
    made.load_verify_locations("ca.pem")
    made.load_cert_chain(f"{identity}.pem", f"{identity}.key")
    made.verify_mode = ssl.CERT_REQUIRED
    only = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]
    made.minimum_version = made.maximum_version = only
    return made


def pattern(count):
    return bytes((i ^ i >> 8 ^ i >> 16) & 255 for i in range(count))


def client(argument):
    port, version, count = argument.split(",")
    plain = socket.create_connection(("127.0.0.1", int(port)))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = context("alice", version).wrap_socket(
        plain, server_hostname="localhost", suppress_ragged_eofs=False
    )
    swap(stream, int(count))
    print("open", flush=True)
    sys.stdin.readline()
    swap(stream, 1)
    stream.unwrap().close()
    print("done", flush=True)


def swap(stream, count):
    """Piece by piece, because an SSLSocket is not for two threads at once."""
    sent = pattern(count)
    for at in range(0, count, CHUNK):
        piece = sent[at : at + CHUNK]
        stream.sendall(piece)
        got = b""
        while len(got) < len(piece):
            more = stream.recv(CHUNK)
            if not more:
                raise SystemExit(f"the end after {at + len(got)} bytes")
            got += more
        if got != piece:
            raise SystemExit(f"wrong bytes from {at} on")


def server(kind):
    listener = socket.create_server(("127.0.0.1", 0))
    print("port", listener.getsockname()[1], flush=True)
    serve = {"cut": cut, "smtp": smtp, "smtps": smtp}.get(kind, echo)
    tls = None if kind == "smtp" else context("localhost", kind if serve is echo else "1.3")

    def accept():
        while True:
            stream, _ = listener.accept()
            threading.Thread(target=start, args=(stream,), daemon=True).start()

    def start(stream):
        if tls:
            stream = tls.wrap_socket(stream, server_side=True, suppress_ragged_eofs=False)
        serve(stream)

    threading.Thread(target=accept, daemon=True).start()


def echo(stream):
    while data := stream.recv(100_000):
        stream.sendall(data)
    stream.sendall(b"bye")
    stream.unwrap().close()
    print("served", flush=True)


def cut(stream):
    stream.sendall(pattern(100_000))
    stream.close()


def smtp(stream):
    stream.sendall(b"220 localhost ready\r\n")
    for line in stream.makefile("rb"):
        if line.upper().startswith(b"QUIT"):
            stream.sendall(b"221 bye\r\n")
            break
        stream.sendall(b"250 fine\r\n")
    if isinstance(stream, ssl.SSLSocket):
        stream = stream.unwrap()
    stream.close()


def smtp_client(port):
    with smtplib.SMTP("127.0.0.1", int(port), timeout=20) as session:
        print("greeted", session.noop(), flush=True)


if __name__ == "__main__":
    for word in sys.argv[2:]:
        {"client": client, "server": server, "smtp": smtp_client}[sys.argv[1]](word)
    sys.stdin.read()
