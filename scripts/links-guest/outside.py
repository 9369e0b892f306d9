"""The servers of scripts/test-links-guest.sh: they have the network that the guest uses.

    outside.py serve FOLDER CERTIFICATE KEY    HTTP, HTTPS, FTP, UDP and DNS, until it is ended
    outside.py tap FILE                        writes every packet of lo to FILE, until it is ended

HTTP and HTTPS serve the files of FOLDER; PUT returns the SHA-256 of the body. FTP has passive transfers
only. Every name has the addresses of this side.
"""

import contextlib
import functools
import hashlib
import http.server
import os
import socket
import ssl
import struct
import sys
import threading
import time

V4 = "192.0.2.1"
V6 = "2001:db8::1"
HTTP, HTTPS, FTP, FTP_DATA, ENDED, ENDS, UDP = 8080, 8443, 2121, 2122, 8090, 8091, 8053


class Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        digest = hashlib.sha256()
        left = int(self.headers["Content-Length"])
        while left > 0:
            part = self.rfile.read(min(left, 65536))
            if not part:
                return
            digest.update(part)
            left -= len(part)
        answer = digest.hexdigest().encode() + b"\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


class Version6(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6


def serve_files(folder, certificate, key):
    files = functools.partial(Files, directory=folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    secured = http.server.ThreadingHTTPServer((V4, HTTPS), files)
    secured.socket = context.wrap_socket(secured.socket, server_side=True)
    clear = http.server.ThreadingHTTPServer((V4, HTTP), files)
    return [secured, clear, Version6((V6, HTTP), files)]


def ftp_session(connection, folder):
    """One session: as much of FTP as passive transfers need. Uploads are dropped."""
    data = None
    with connection, connection.makefile("rw", newline="\r\n") as control:

        def reply(text):
            control.write(text + "\r\n")
            control.flush()

        reply("220 ready")
        for line in control:
            word, _, argument = line.strip().partition(" ")
            match word.upper():
                case "USER":
                    reply("331 password")
                case "PASS":
                    reply("230 welcome")
                case "PASV" | "EPSV":
                    data = data or socket.create_server((V4, FTP_DATA))
                    high, low = divmod(FTP_DATA, 256)
                    numbers = ",".join([*V4.split("."), str(high), str(low)])
                    passive = f"227 passive ({numbers})"
                    extended = f"229 passive (|||{FTP_DATA}|)"
                    reply(passive if word.upper() == "PASV" else extended)
                case "SIZE":
                    reply(f"213 {os.path.getsize(os.path.join(folder, argument))}")
                case "RETR":
                    reply("150 begins")
                    stream, _ = data.accept()
                    with stream, open(os.path.join(folder, argument), "rb") as file:
                        stream.sendfile(file)
                    reply("226 complete")
                case "STOR":
                    reply("150 begins")
                    stream, _ = data.accept()
                    with stream:
                        while stream.recv(1 << 18):
                            pass
                    reply("226 complete")
                case "QUIT":
                    reply("221 end")
                    break
                case _:
                    reply("200 done")
    if data:
        data.close()


def serve_ftp(folder):
    server = socket.create_server((V4, FTP))
    while True:
        connection, _ = server.accept()
        ftp_session(connection, folder)


def serve_ended():
    """Counts the bytes of a stream until its end, and only then answers."""
    server = socket.create_server((V4, ENDED))
    while True:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            count = 0
            while part := connection.recv(65536):
                count += len(part)
            connection.sendall(b"received %d\n" % count)


def serve_ending(folder):
    """Ends its direction first, reads late, and stores how many bytes it has received until the end."""
    server = socket.create_server((V4, ENDS))
    while True:
        connection, _ = server.accept()
        with connection:
            connection.shutdown(socket.SHUT_WR)
            # Longer than the guest's kernel waits after the close of a vsock connection.
            time.sleep(12)
            count, end = 0, "end"
            try:
                while part := connection.recv(4096):
                    count += len(part)
            except OSError as error:
                end = str(error)
        with open(os.path.join(folder, "tail"), "w") as file:
            file.write(f"{count} {end}")


def serve_datagrams():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((V4, UDP))
    while True:
        data, peer = server.recvfrom(65536)
        server.sendto(b"answer to " + data, peer)


def serve_names():
    """Answers every query with the address of this side, of the type that was asked for."""
    addresses = {1: socket.inet_pton(socket.AF_INET, V4), 28: socket.inet_pton(socket.AF_INET6, V6)}
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((V4, 53))
    while True:
        query, peer = server.recvfrom(4096)
        end = query.index(b"\0", 12) + 5
        address = addresses.get(struct.unpack("!H", query[end - 4 : end - 2])[0])
        answer = query[:2] + b"\x81\x80" + query[4:6]
        answer += struct.pack("!HHH", 1 if address else 0, 0, 0) + query[12:end]
        if address:
            answer += b"\xc0\x0c" + query[end - 4 : end]
            answer += struct.pack("!IH", 60, len(address)) + address
        server.sendto(answer, peer)


def serve(folder, certificate, key):
    web = serve_files(folder, certificate, key)
    work = [one.serve_forever for one in web]
    work += [functools.partial(serve_ftp, folder), serve_ended]
    work += [functools.partial(serve_ending, folder), serve_datagrams, serve_names]
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()


def tap(name):
    every_protocol = 3
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(every_protocol))
    packets.bind(("lo", 0))
    with open(name, "wb", buffering=0) as file:
        while True:
            file.write(packets.recv(1 << 18))


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    {"serve": serve, "tap": tap}[command](*arguments)
