"""The servers at 10.9.8.7: HTTP on port 8080, and a database with one fixed answer on port 5432.

It creates the file servers.ready when both listen.
"""

import http.server
import socketserver
import struct
import threading

ADDRESS = "10.9.8.7"
SSL_REQUEST = 80877103


class Web(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"small\n")

    def log_message(self, *_):
        pass


class Database(socketserver.StreamRequestHandler):
    """The part of the PostgreSQL protocol that a client needs to connect and send one query."""

    def send(self, kind, body):
        self.wfile.write(kind + struct.pack(">I", len(body) + 4) + body)

    def handle(self):
        while True:
            header = self.rfile.read(8)
            if len(header) < 8:
                return
            length, code = struct.unpack(">II", header)
            self.rfile.read(length - 8)
            if code != SSL_REQUEST:
                break
            self.wfile.write(b"N")
        self.send(b"R", struct.pack(">I", 0))
        self.send(b"S", b"client_encoding\0UTF8\0")
        self.send(b"Z", b"I")
        while (kind := self.rfile.read(1)) not in (b"", b"X"):
            (length,) = struct.unpack(">I", self.rfile.read(4))
            self.rfile.read(length - 4)
            if kind == b"Q":
                column = b"one\0" + struct.pack(">IHIhih", 0, 0, 25, -1, -1, 0)
                self.send(b"T", struct.pack(">H", 1) + column)
                self.send(b"D", struct.pack(">HI", 1, 1) + b"1")
                self.send(b"C", b"SELECT 1\0")
                self.send(b"Z", b"I")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1000

    def handle_error(self, *_):
        """Ignores clients that close early."""


web = Server((ADDRESS, 8080), Web)
database = Server((ADDRESS, 5432), Database)
threading.Thread(target=database.serve_forever, daemon=True).start()
open("servers.ready", "w").close()
web.serve_forever()
