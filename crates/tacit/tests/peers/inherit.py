"""Starts `tacit run` with an open listening socket.

inherit.py pass|stdin|none [OPTION...]: the socket is passed by its number, as standard input, or
not at all; N in an option stands for the number. Prints the status, what the program wrote, and
whether the refusal names the socket's address and the option that allows it.
"""

import socket
import subprocess
import sys

how, *options = sys.argv[1:]
kept = socket.create_server(("127.0.0.1", 0))
port = kept.getsockname()[1]
number = str(kept.fileno())
command = ["timeout", "60", "./tacit", "run", "--policy", "run.toml"]
command += [option.replace("N", number) for option in options]
done = subprocess.run(
    [*command, "--", "sh", "-c", "echo ran"],
    stdin=kept if how == "stdin" else None,
    pass_fds=[kept.fileno()] if how == "pass" else [],
    capture_output=True,
    text=True,
)
named = f"network socket at 127.0.0.1:{port}" in done.stderr
print(done.returncode, done.stdout.strip(), named, "--inherit-fd" in done.stderr)
