"""The ends of the connections of scripts/test-guest.sh: servers outside, programs in the guest.

    serve PORT...                on loopback, until it is ended
    ask HOST PORT WORD           one request; prints the answer, or why there is none
    hold HOST PORT WORD FILE     opens a connection, makes FILE.open, and asks when FILE is there
    daemon HOST PORT WORD LOG    asks without end; writes one line for each attempt
"""

import errno
import os
import socket
import sys
import threading
import time

TIMEOUT_S = 60
PAUSE_S = 0.1


def answer(connection, peer):
    with connection:
        try:
            while data := connection.recv(4096):
                connection.sendall(b"answer to " + data)
        except OSError:
            pass


def accept(server):
    while True:
        connection, peer = server.accept()
        threading.Thread(target=answer, args=(connection, peer), daemon=True).start()


def serve(*ports):
    servers = []
    for port in ports:
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                servers.append(socket.create_server((address, int(port)), family=family))
            except OSError as error:
                print(f"{address}: {error}", file=sys.stderr)
    threads = [threading.Thread(target=accept, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()


def reason(error):
    if isinstance(error, TimeoutError):
        return "timeout"
    return errno.errorcode.get(error.errno, type(error).__name__)


def exchange(host, port, word):
    try:
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            connection.sendall(word.encode())
            return connection.recv(4096).decode("ascii", "replace") or "end"
    except OSError as error:
        return reason(error)


def ask(host, port, word):
    print(exchange(host, port, word))


def hold(host, port, word, name):
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(b"first")
        connection.recv(4096)
        open(name + ".open", "w").close()
        while not os.path.exists(name):
            time.sleep(PAUSE_S)
        try:
            connection.sendall(word.encode())
            print(connection.recv(4096).decode("ascii", "replace") or "end")
        except OSError as error:
            print(reason(error))


def daemon(host, port, word, name):
    with open(name, "w", buffering=1) as log:
        while True:
            log.write(exchange(host, port, word) + "\n")
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    {"serve": serve, "ask": ask, "hold": hold, "daemon": daemon}[command](*arguments)
