#!/usr/bin/env python3
"""Starts in clear, and has tacit begin TLS in the middle of the connection.

The rule for the connection says start = "controlled":

    tacit run --policy policy.toml -- python3 upgrade.py HOST PORT

The protocol is a line each way: to STARTTLS the server answers GO, to anything else the same line.
"""

import socket
import sys

from query import ask


def exchange(connection, line):
    connection.sendall(line.encode() + b"\n")
    answer = b""
    # No byte more than the line: what follows it may be TLS already.
    while not answer.endswith(b"\n"):
        answer += connection.recv(1) or sys.exit("the server ended")
    return answer.decode().strip()


if __name__ == "__main__":
    host, port = sys.argv[1:]
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        print(exchange(connection, "in clear"), ask(connection)["connection"])
        if exchange(connection, "STARTTLS") != "GO":
            sys.exit("the server does not offer TLS")
        answer = ask(connection, "start")
        if "error" in answer:
            sys.exit(answer["message"])
        print(exchange(connection, "under TLS"), answer["connection"], answer["peer"])
        print("new keys:", ask(connection, "rekey")["rekeys"])
        if exchange(connection, "STOPTLS") != "GO":
            sys.exit("the server continues with TLS")
        print(exchange(connection, "in clear again") if "error" not in ask(connection, "stop") else "")
