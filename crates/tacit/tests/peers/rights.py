"""Binds low ports, sends itself an echo request, and says which rights it has: none, less or all."""

import os
import socket

socket.create_server(("127.0.0.1", 80))
socket.create_server(("::", 443), family=socket.AF_INET6)
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
echo.settimeout(10)
echo.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 1]), ("127.0.0.1", 0))
print("echo", echo.recv(100)[0])

status = dict(line.split(":\t", 1) for line in open("/proc/self/status"))
effective, bounding = (int(status[name], 16) for name in ("CapEff", "CapBnd"))
net_admin_or_sys_admin = 1 << 12 | 1 << 21
if os.getuid() and not effective:
    print("none")
else:
    print("all" if bounding & net_admin_or_sys_admin else "less")
