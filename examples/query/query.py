#!/usr/bin/env python3
"""Says how tacit protects a connection of this program.

    tacit run --policy policy.toml -- python3 query.py HOST PORT
"""

import json
import os
import socket
import sys
import time


def ask(connection, question="query"):
    """Asks the agent about a connected socket; returns what it says."""
    name = os.environ["TACIT_QUERY"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        # `@` at the beginning stands for the byte 0 of an abstract name.
        agent.connect("\0" + name[1:] if name.startswith("@") else name)
        socket.send_fds(agent, [question.encode()], [connection.fileno()])
        return json.loads(agent.recv(16384))


def settled(connection):
    """The same, once TLS has begun or failed to."""
    while (answer := ask(connection)).get("connection") == "handshaking":
        time.sleep(0.01)
    return answer


if __name__ == "__main__":
    host, port = sys.argv[1:]
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        answer = settled(connection)
        print(json.dumps(answer))
        sys.exit(0 if answer.get("connection") == "secure" else 1)
