"""Runs `tacit top` on a terminal of 80 by 24: top.py TACIT CONTROL HOW

Prints `drawn` when a rule of the agent's is seen, `sorted` when the order changes, `resized` when
the last line of a larger terminal is drawn, and, when it has ended the way HOW says (quit,
interrupt, terminate, lost), its status and whether the terminal is as it was.
"""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

tacit, control, how = sys.argv[1:]
PATIENCE = 20
controller, terminal = pty.openpty()
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
before = termios.tcgetattr(terminal)
pid = os.fork()
if pid == 0:
    os.close(controller)
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for fd in range(3):
        os.dup2(terminal, fd)
    os.environ["TERM"] = "xterm-256color"
    os.execv(tacit, [tacit, "top", "--control", control, "--interval", "200ms"])

seen = b""


def read(seconds):
    """What is drawn within that time; nothing at the end."""
    global seen
    if select.select([controller], [], [], seconds)[0]:
        try:
            seen += os.read(controller, 65536)
        except OSError:
            pass


def until(what, text):
    end = time.monotonic() + PATIENCE
    while text not in seen:
        if time.monotonic() > end:
            sys.exit(f"timed out waiting for {what}: {seen[-2000:]!r}")
        read(0.1)
    print(what, flush=True)


until("drawn", b"front-door")
os.write(controller, b"s")
until("sorted", b"(by connections)")
fcntl.ioctl(controller, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
until("resized", b"\x1b[40;1H")
if how == "lost":
    sys.stdin.readline()
    until("told", b"no agent answers")
    os.write(controller, b"q")
elif how == "quit":
    os.write(controller, b"q")
elif how == "interrupt":
    os.write(controller, b"\x03")
else:
    os.kill(pid, signal.SIGTERM)
end = time.monotonic() + PATIENCE
while True:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended:
        break
    if time.monotonic() > end:
        os.kill(pid, signal.SIGKILL)
        sys.exit("it does not end")
    read(0.05)
read(0.1)
left = seen.rfind(b"\x1b[?1049l") > seen.rfind(b"\x1b[?1049h") >= 0
shown = seen.rfind(b"\x1b[?25h") >= seen.rfind(b"\x1b[?25l")
same = termios.tcgetattr(terminal) == before
print("status", os.waitstatus_to_exitcode(status), "restored" if left and shown and same else
      f"not restored: {left} {shown} {same}")
