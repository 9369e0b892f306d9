"""Runs programs whose result depends on how a connection fails.

Prints a line of JSON for each program: its name, its status and output, and its time in milliseconds.
Programs that are not installed are skipped.
"""

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

LONGEST_SECONDS = 30
HERE = Path(__file__).resolve().parent

CONNECT = """
import errno, socket, sys
for host, port in zip(sys.argv[1::2], sys.argv[2::2]):
    stream = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET)
    stream.settimeout(2)
    try:
        stream.connect((host, int(port)))
        print('connected')
    except OSError as error:
        print(errno.errorcode.get(error.errno, 'timeout'))
"""
URLLIB = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read())"
FETCH = "fetch(process.argv[1]).then(async r => console.log(await r.text()))" \
    ".catch(e => { console.log(e.cause.code); process.exit(1) })"
OWN_CLOSED_PORT = """
import socket
for host, family in (('127.0.0.1', socket.AF_INET), ('::1', socket.AF_INET6)):
    early = socket.socket(family)
    print(early.connect_ex((host, 7300)))
    server = socket.socket(family)
    server.bind((host, 7300))
    server.listen()
    late = socket.create_connection((host, 7300))
    print(server.accept()[1][0] == host)
"""
NON_BLOCKING = """
import selectors, socket
for target in (('10.9.8.7', 8080), ('10.9.8.6', 8080), ('127.0.0.1', 9)):
    stream = socket.socket()
    stream.setblocking(False)
    first = stream.connect_ex(target)
    chosen = selectors.DefaultSelector()
    chosen.register(stream, selectors.EVENT_WRITE)
    chosen.select(5)
    print(first, stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
"""
BIND = """
import socket, sys
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try:
        socket.socket(socket.AF_INET, kind).bind((sys.argv[1], int(sys.argv[2])))
        print('bound')
    except OSError as error:
        print(error.strerror)
"""
OWN_ADDRESS = """
import socket
server = socket.create_server(('0.0.0.0', 7301))
try:
    stream = socket.create_connection(('192.168.77.1', 7301), 5)
    print(server.accept()[1][0])
except OSError as error:
    print(error)
"""
OWN_ADDRESS_IPV6 = OWN_ADDRESS.replace("0.0.0.0', 7301)", "::', 7302), family=socket.AF_INET6") \
    .replace("'192.168.77.1', 7301", "'2001:db8:77::1', 7302")
URGENT = """
import select, socket
server = socket.create_server(('127.0.0.1', 7303))
near = socket.create_connection(('127.0.0.1', 7303))
far = server.accept()[0]
near.send(b'!', socket.MSG_OOB)
select.select([], [], [far], 5)
try:
    print(far.recv(1, socket.MSG_OOB))
except OSError as error:
    print(error)
"""
# The loops of the next programs poll often: with a long interval, its phase would decide about
# milliseconds, and not the connections.
NGINX = """
cat >n.conf <<'C'
pid n.pid; error_log n.log; daemon off; master_process off;
events {}
http {
    access_log off; client_body_temp_path b; proxy_temp_path p;
    fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    upstream back { server 10.9.8.6:8080; server 10.9.8.7:8080; }
    server { listen 127.0.0.1:8181; location / { proxy_pass http://back; } }
}
C
nginx -p $PWD -c n.conf 2>/dev/null & server=$!
until nc -z 127.0.0.1 8181; do sleep 0.002; done
for try in 1 2 3 4; do curl -s -o /dev/null -w '%{http_code} ' http://127.0.0.1:8181/; done
kill $server; wait
"""
HAPROXY = """
cat >h.cfg <<'C'
defaults
    mode http
    timeout connect 5s
    timeout client 10s
    timeout server 10s
frontend front
    bind 127.0.0.1:8180
    default_backend back
backend back
    server up 10.9.8.7:8080 check inter 200
    server down 10.9.8.6:8080 check inter 200
C
haproxy -db -f h.cfg 2>/dev/null & server=$!
until curl -s -o /dev/null http://127.0.0.1:8180/; do sleep 0.1; done
sleep 1
for try in 1 2 3 4 5 6; do
    curl -s -o /dev/null -w '%{http_code} ' http://127.0.0.1:8180/
done
kill $server; wait
"""
WAIT_FOR_PORT = """
(sleep 0.5; exec timeout 2 /usr/bin/python3 -m http.server --bind 127.0.0.1 7304) >/dev/null 2>&1 &
for try in $(seq 1000); do
    (exec 3<>/dev/tcp/127.0.0.1/7304) 2>/dev/null && break; sleep 0.002
done
[ $try -gt 5 ] && echo "waited"; curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:7304/
kill %1; wait
"""


def python(program, *words):
    return ["/usr/bin/python3", "-c", program, *words]


def shell(program):
    return ["bash", "-c", program]


def programs():
    """The tests: name, required command, and arguments."""
    for name in ("dual", "two", "hole"):
        url = f"http://{name}.example:8080/"
        yield f"fallback.{name}.curl", ["curl", "-sS", "--stderr", "-", url]
        yield f"fallback.{name}.wget", ["wget", "-q", "-T", "5", "-t", "1", "-O", "-", url]
        yield f"fallback.{name}.node", ["node", "-e", FETCH, url]
        yield f"fallback.{name}.go", [str(HERE / "../../target/transparency/own/fetch"), url]
        yield f"fallback.{name}.php", ["php", "-r", f"echo file_get_contents('{url}');"]
        if name != "hole":
            yield f"fallback.{name}.python", python(URLLIB, url)
            yield f"fallback.{name}.bash", shell(f"exec 3<>/dev/tcp/{name}.example/8080")
    yield "failover.psql", [
        "psql", "-XAt", "host=10.9.8.6,10.9.8.7 port=5432 user=u dbname=d", "-c", "select 1"]
    yield "failover.pg_isready", ["pg_isready", "-q", "-h", "10.9.8.6", "-p", "5432"]
    yield "failover.nginx", shell(f"command -v nginx >/dev/null || exit 0{NGINX}")
    yield "failover.haproxy", shell(f"command -v haproxy >/dev/null || exit 0{HAPROXY}")
    for host in ("10.9.8.6", "10.9.8.7", "127.0.0.1"):
        yield f"probe.{host}.nc", ["nc", "-z", host, "8080"]
        yield f"probe.{host}.bash", shell(f"exec 3<>/dev/tcp/{host}/8080 2>/dev/null")
    yield "retry.curl", shell(
        "curl -sv --retry 2 --retry-connrefused --retry-delay 1 http://10.9.8.6:8080/ 2>&1"
        " | grep -c Trying")
    yield "retry.wait-for-port", shell(WAIT_FOR_PORT)
    yield "connect.errors", python(
        CONNECT, "10.9.8.7", "8080", "10.9.8.6", "8080", "2001:db8::7", "8080",
        "127.0.0.1", "9", "::1", "9", "192.0.2.1", "80")
    yield "connect.own-closed-port", python(OWN_CLOSED_PORT)
    yield "connect.non-blocking", python(NON_BLOCKING)
    yield "address.bind-foreign", python(BIND, "192.0.2.1", "0")
    yield "address.bind-low-port", python(BIND, "127.0.0.1", "80")
    yield "address.own-server", python(OWN_ADDRESS)
    yield "address.own-server-ipv6", python(OWN_ADDRESS_IPV6)
    yield "address.hostname", ["hostname", "-I"]
    yield "urgent.loopback", python(URGENT)


def run_once(command, directory):
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=LONGEST_SECONDS, check=False)
        result = f"status {done.returncode}: {done.stdout.decode(errors='replace')!r}"
    except subprocess.TimeoutExpired:
        result = "timeout"
    return result, (time.monotonic() - begin) * 1000


def main():
    for name, command in programs():
        if not shutil.which(command[0]):
            continue
        with tempfile.TemporaryDirectory() as directory:
            result, took = run_once(command, directory)
        print(json.dumps({"test": name, "result": result, "ms": round(took, 1)}), flush=True)


main()
