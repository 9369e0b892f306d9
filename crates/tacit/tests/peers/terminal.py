"""Types at a shell in a terminal of its own, and runs `tacit run` there as a job.

terminal.py SCRATCH: prints one line for each thing that was seen to work; anything else ends with
status 1 and what the terminal showed.
"""

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import socket
import sys
import threading
import time

PATIENCE = 20
scratch = sys.argv[1]
received = []


def serve(listener):
    """Counts what a program sends over one connection."""
    connection, _ = listener.accept()
    while bytes_read := connection.recv(100):
        received.append(bytes_read)


listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
threading.Thread(target=serve, args=(listener,), daemon=True).start()
with open(f"{scratch}/here.toml", "w") as policy:
    policy.write(
        "version = 1\n[[rule]]\nname = 'here'\ndirection = 'outbound'\n"
        f"remote = '127.0.0.1'\nremote-ports = {port}\npermit = true\n"
    )
with open(f"{scratch}/talk.py", "w") as program:
    program.write(
        "import socket, time\n"
        f"connection = socket.create_connection(('127.0.0.1', {port}))\n"
        "for _ in range(1200):\n    connection.send(b'x')\n    time.sleep(0.02)\n"
    )

# It says when it may be stopped, and when it has the terminal again after a stop. Its sleeps are
# short, because a signal that arrives just before a sleep does not end it.
with open(f"{scratch}/wait.py", "w") as program:
    program.write(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGCONT, lambda *_: print('going' + ' on', flush=True))\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "print('rea' + 'dy', flush=True)\n"
        "end = time.monotonic() + float(sys.argv[1])\n"
        "while time.monotonic() < end:\n    time.sleep(0.05)\n"
        "print('fini' + 'shed', flush=True)\n"
    )
WAIT = f"python3 {scratch}/wait.py"

shell, terminal = pty.fork()
if shell == 0:
    os.environ["PS1"] = "prompt> "
    os.execlp("bash", "bash", "--norc", "--noprofile", "--noediting", "-i")
shown = ""


def see(pattern):
    """Waits until the terminal shows it, and forgets what came before its end."""
    global shown
    end = time.monotonic() + PATIENCE
    while not (found := re.search(pattern, shown)):
        left = end - time.monotonic()
        if left <= 0 or not select.select([terminal], [], [], left)[0]:
            sys.exit(f"no {pattern!r} in {shown!r}")
        shown += os.read(terminal, 4096).decode(errors="replace")
    shown = shown[found.end() :]
    return found


def send(text):
    os.write(terminal, text.encode())


def run(command):
    send(f"./tacit run --policy {scratch}/here.toml -- {command}\n")


def status(wanted):
    # The line as it is typed does not show the number.
    send("echo status $?.\n")
    found = see(r"status (\d+)\.").group(1)
    if found != str(wanted):
        sys.exit(f"status {found}, wanted {wanted}")
    see(r"(prompt|inner)> ")


see("prompt> ")
run("sh -c 'echo rea''dy; exec sleep 100'")
see("ready")
send("\x03")
see("prompt> ")
status(130)
print("interrupted")

run(f"{WAIT} 100")
see("ready")
send("\x1a")
see("Stopped")
see("prompt> ")
send("fg\n")
see("going on")
send("\x03")
see("prompt> ")
status(130)
print("stopped and continued")

run(f"{WAIT} 2")
see("ready")
send("\x1a")
see("Stopped")
see("prompt> ")
send("bg\n")
see("finished")
send("wait; echo sta''tus $?.\n")
see(r"status 0\.")
print("went on in the background")

run("sh -c 'read line; echo got=$line'")
send("words\n")
see("got=words")
print("read the terminal")

run("env PS1='inner> ' bash --norc --noprofile --noediting -i")
see("inner> ")
send(f"{WAIT} 100\n")
see("ready")
send("\x1a")
see("Stopped")
see("inner> ")
send("fg\n")
see("going on")
send("\x03")
see("inner> ")
status(130)
send("exit 5\n")
see("prompt> ")
status(5)
send("cat\n")
send("typed\n")
see(r"typed[\s\S]*typed")
send("\x03")
see("prompt> ")
status(130)
print("gave the terminal to a shell and back")

run(f"sh -c 'setsid -f python3 {scratch}/talk.py; exec {WAIT} 100'")
see("ready")
while not received:
    time.sleep(0.02)
send("\x1a")
see("Stopped")
see("prompt> ")
before = len(b"".join(received))
end = time.monotonic() + PATIENCE
while len(b"".join(received)) < before + 20 and time.monotonic() < end:
    time.sleep(0.02)
if len(b"".join(received)) < before + 20:
    sys.exit("the agent stopped with the job")
send("fg\n")
see("going on")
send("\x03")
# The launcher terminates the daemon that still runs.
see("sends SIGTERM")
see("prompt> ")
status(130)
print("served a daemon while the job was stopped")
# The agent waits until it can open the policy, because this process has a lease on the file.
signal.signal(signal.SIGIO, signal.SIG_IGN)
shutil.copy(f"{scratch}/here.toml", f"{scratch}/slow.toml")
with open(f"{scratch}/slow.toml") as policy:
    fcntl.fcntl(policy, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    send(f"./tacit run --policy {scratch}/slow.toml -- sh -c 'echo rea''dy'\n")
    end = time.monotonic() + PATIENCE
    while fcntl.fcntl(policy, fcntl.F_GETLEASE) == fcntl.F_WRLCK:
        if time.monotonic() > end:
            sys.exit("no agent opens the policy")
        time.sleep(0.02)
    # The launcher now waits for its agent.
    time.sleep(0.5)
    send("\x1a")
    see("Stopped")
    see("prompt> ")
send("fg\n")
see("ready")
see("prompt> ")
status(0)
print("stopped and continued before the program started")
send("exit\n")
os.waitpid(shell, 0)
