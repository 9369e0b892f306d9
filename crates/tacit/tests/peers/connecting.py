"""A stream of new connections: connecting.py ADDRESS PORT FILE

Begins a connection every few milliseconds until FILE exists, without waiting for the others.
Prints a line for each: `connected`, or the name of the error.
"""

import errno
import os
import select
import socket
import sys
import time

# The longest time until a connection is established or has failed.
PATIENCE = 30
INTERVAL = 0.01


def report(number):
    text = "connected" if number == 0 else errno.errorcode.get(number, str(number))
    print(text, flush=True)


def begin(address, waiting, poll):
    stream = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    stream.setblocking(False)
    number = stream.connect_ex(address)
    if number == errno.EINPROGRESS:
        waiting[stream.fileno()] = (stream, time.monotonic())
        poll.register(stream, select.POLLOUT)
        return
    report(number)
    stream.close()


def finish(waiting, poll):
    for descriptor, _ in poll.poll(INTERVAL * 1000):
        stream, _ = waiting.pop(descriptor)
        poll.unregister(descriptor)
        report(stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        stream.close()


def main(address, port, end):
    waiting = {}
    poll = select.poll()
    due = time.monotonic()
    while not os.path.exists(end):
        if time.monotonic() >= due:
            begin((address, int(port)), waiting, poll)
            due = time.monotonic() + INTERVAL
        finish(waiting, poll)
    until = time.monotonic() + PATIENCE
    while waiting and time.monotonic() < until:
        finish(waiting, poll)
    for _ in waiting:
        print("pending", flush=True)


main(*sys.argv[1:])
