"""Keeps other processes from opening a file.

lease.py FILE: takes a lease on the file, prints "held", and keeps the lease until standard input
ends. The kernel lets other processes wait for the end of the lease.
"""

import fcntl
import signal
import sys
import time

# The kernel sends this signal when another process wants to open the file.
signal.signal(signal.SIGIO, signal.SIG_IGN)
with open(sys.argv[1]) as held:
    while True:
        try:
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            break
        except BlockingIOError:
            # Another process has not closed the file yet.
            time.sleep(0.01)
    print("held", flush=True)
    sys.stdin.read()
