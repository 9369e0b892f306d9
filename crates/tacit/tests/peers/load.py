"""A program whose agent is about to die: load.py HOST PORT KILLED.

It talks to an echo server without a pause. Once the file KILLED is there, nothing may be reached
any more. Before that, no stream may end early in good order. It says `loading` after its first
talk, then what is wrong, then `done` and how many talks were whole.
"""

import errno
import os
import socket
import sys
import threading
import time

host, port, killed = sys.argv[1], int(sys.argv[2]), sys.argv[3]
MARK = b"THIS IS IN CLEAR "
TEXT = MARK * 500
whole, wrong, over = [0], [], threading.Event()


def talk():
    with socket.create_connection((address, port), 20) as stream:
        stream.sendall(TEXT)
        got = b""
        while len(got) < len(TEXT):
            data = stream.recv(65536)
            if not data:
                raise EOFError(f"the end after {len(got)} bytes")
            got += data
        if got != TEXT:
            wrong.append("other bytes")


def keep_talking():
    while not over.is_set():
        try:
            talk()
            whole[0] += 1
            time.sleep(0.005)
        except EOFError as error:
            wrong.append(f"{error}")
        except TimeoutError:
            wrong.append("nothing happens")
        except OSError as error:
            # No agent, a stream that was cut.
            if error.errno not in (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE):
                wrong.append(f"{error}")
            time.sleep(0.002)


try:
    # Once: a question that the agent took with it is asked again after five seconds only.
    address = socket.gethostbyname(host)
except OSError:
    address = "10.9.8.8"
threads = [threading.Thread(target=keep_talking) for _ in range(2)]
for thread in threads:
    thread.start()
end, said = time.monotonic() + 20, False
while not os.path.exists(killed) and time.monotonic() < end:
    if whole[0] and not said:
        print("loading", flush=True)
        said = True
    time.sleep(0.001)
for target in (address, port), ("10.9.8.7", port):
    try:
        socket.create_connection(target, 20)
        wrong.append(f"{target} is reached without an agent")
    except ConnectionRefusedError:
        pass
    except OSError as error:
        wrong.append(f"{target} without an agent: {error}")
over.set()
for thread in threads:
    thread.join()
for what in wrong:
    print(what)
print("done", whole[0])
