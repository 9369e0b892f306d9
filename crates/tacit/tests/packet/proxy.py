"""Loses, repeats and delays datagrams between two ports: proxy.py NEAR-PORT FAR-PORT FAR LOST REPEATED LATE

The last three are percentages. A late datagram follows the three after it."""
import random
import select
import socket
import sys

near_port, far_port = int(sys.argv[1]), int(sys.argv[2])
far = (sys.argv[3], 4500)
lost, repeated, late = (int(number) for number in sys.argv[4:])
random.seed(7)
near_socket, far_socket = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
near_socket.bind(("10.99.0.1", near_port))
far_socket.bind(("10.99.0.1", far_port))
for one in (near_socket, far_socket):
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
targets = {near_socket: (far_socket, far), far_socket: (near_socket, ("10.99.0.1", 4500))}
waiting = {near_socket: [], far_socket: []}
print("ready", flush=True)
while True:
    ready, _, _ = select.select(list(targets), [], [], 0.01)
    for source in targets:
        out, to = targets[source]
        queue = waiting[source]
        if source not in ready:
            while queue:
                out.sendto(queue.pop(0)[1], to)
            continue
        data = source.recv(65535)
        chance = random.random() * 100
        if chance < lost:
            continue
        if chance < lost + late:
            queue.append([3, data])
            continue
        out.sendto(data, to)
        if chance < lost + late + repeated:
            out.sendto(data, to)
        for entry in queue:
            entry[0] -= 1
        while queue and queue[0][0] <= 0:
            out.sendto(queue.pop(0)[1], to)
