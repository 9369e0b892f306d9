# A PostgreSQL client with TLS of its own, by the messages of the protocol: postgres.py PORT CA HOW
# [ALPN]. HOW: "asked" sends an SSLRequest first, "direct" begins with the handshake. It begins a
# query that takes long, cancels it on a second connection made in the same way, as libpq does from
# version 17 on, and prints the application protocol and the error that ends the query. "clear" is
# "asked" with a second connection in clear, as libpq made it before.
import socket, ssl, struct, sys

PORT, CA, HOW, *ALPN = sys.argv[1:]
CODE_SSL, CODE_CANCEL = 80877103, 80877102

def reach():
    return socket.create_connection(("127.0.0.1", int(PORT)))

def secure():
    raw = reach()
    if HOW != "direct":
        raw.sendall(struct.pack("!ii", 8, CODE_SSL))
        assert raw.recv(1) == b"S"
    context = ssl.create_default_context(cafile=CA)
    if ALPN:
        context.set_alpn_protocols(ALPN)
    return context.wrap_socket(raw, server_hostname="localhost")

def exactly(stream, count):
    got = b""
    while len(got) < count:
        got += stream.recv(count - len(got)) or sys.exit("it ended")
    return got

def message(stream):
    kind, length = struct.unpack("!ci", exactly(stream, 5))
    return kind, exactly(stream, length - 4)

try:
    stream = secure()
    words = b"user\0tester\0database\0postgres\0\0"
    stream.sendall(struct.pack("!ii", 8 + len(words), 3 << 16) + words)
    while True:
        kind, body = message(stream)
        if kind == b"K":
            key = body
        if kind == b"Z":
            break
    query = b"do $$ begin raise notice 'it runs'; perform pg_sleep(600); end $$\0"
    stream.sendall(b"Q" + struct.pack("!i", 4 + len(query)) + query)
    # A request that comes before the query does nothing.
    while message(stream)[0] != b"N":
        pass
    cancel = reach() if HOW == "clear" else secure()
    cancel.sendall(struct.pack("!ii", 16, CODE_CANCEL) + key)
    assert cancel.recv(1) == b""
    while True:
        kind, body = message(stream)
        if kind == b"E":
            fields = {field[:1]: field[1:].decode() for field in body.split(b"\0") if field}
            print(stream.selected_alpn_protocol(), fields[b"C"])
            break
except ssl.SSLError as error:
    print(error)
