"""Starts `tacit run` with an open io_uring.

ring.py [OPTION...]: N in an option stands for its number. Prints the status, what the program
wrote, and whether the refusal names the ring and the option that allows it. The program asks for a
turn of the ring, and prints the error.
"""

import ctypes
import os
import subprocess
import sys

SETUP, ENTER = 425, 426
ENTERS = f"""
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall({ENTER}, int(sys.argv[1]), 0, 0, 0, 0, 0)
print(errno.errorcode.get(ctypes.get_errno()))
"""

libc = ctypes.CDLL(None, use_errno=True)
parameters = ctypes.create_string_buffer(120)
ring = libc.syscall(SETUP, 4, parameters)
if ring < 0:
    sys.exit(f"the kernel makes no io_uring here: {os.strerror(ctypes.get_errno())}")
number = str(ring)
command = ["timeout", "60", "./tacit", "run", "--policy", "run.toml"]
command += [option.replace("N", number) for option in sys.argv[1:]]
done = subprocess.run(
    [*command, "--", "python3", "-c", ENTERS, number],
    pass_fds=[ring],
    capture_output=True,
    text=True,
)
named = f"file descriptor {number}: it is an io_uring" in done.stderr
print(done.returncode, done.stdout.strip(), named, f"--inherit-fd {number}" in done.stderr)
