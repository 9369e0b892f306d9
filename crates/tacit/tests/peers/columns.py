"""Runs a command whose standard output is a terminal of so many columns: columns.py COLUMNS CMD...

Prints what the terminal gets, and exits with the status of the command.
"""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

columns, command = int(sys.argv[1]), sys.argv[2:]
controller, terminal = pty.openpty()
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=terminal)
os.close(terminal)
shown = b""
while True:
    try:
        part = os.read(controller, 65536)
    except OSError:  # EIO: the command has closed the terminal
        break
    if not part:
        break
    shown += part
sys.stdout.buffer.write(shown.replace(b"\r\n", b"\n"))
sys.exit(child.wait())
