"""Opens many TLS connections, and sends on some of them later.

usage: waiting.py PORT CA COUNT
Prints `open COUNT` when all are open. Each line `N` on standard input sends a line on the first N
connections and prints `answered N` when each has its answer. Ends with its input.
"""

import resource
import socket
import ssl
import sys

port, ca, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
context = ssl.create_default_context(cafile=ca)
connections = []
for number in range(count):
    stream = socket.create_connection(("127.0.0.1", port), 60)
    connections.append(context.wrap_socket(stream, server_hostname="localhost"))
print("open", count, flush=True)
for line in sys.stdin:
    first = connections[: int(line)]
    for number, connection in enumerate(first):
        connection.sendall(b"line %d\n" % number)
    for number, connection in enumerate(first):
        answer = b""
        while not answer.endswith(b"\n"):
            answer += connection.recv(100) or sys.exit("connection %d ended" % number)
        assert answer == b"line %d\n" % number, answer
    print("answered", len(first), flush=True)
