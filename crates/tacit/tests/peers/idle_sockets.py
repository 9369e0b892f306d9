# Holds idle connections to a port: argv is host, port, number. Connects again when one ends.
import resource
import select
import socket
import sys

host, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
ended = select.epoll()
held = {}


def dial():
    stream = socket.create_connection((host, port), 30)
    held[stream.fileno()] = stream
    ended.register(stream, select.EPOLLIN)


for _ in range(number):
    dial()
open("idle.ready", "w").close()
while True:
    for descriptor, _ in ended.poll():
        held.pop(descriptor).close()
        dial()
