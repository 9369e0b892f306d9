# A telnet server with START_TLS (option 46), by OpenSSL: starttls.py ADDRESS PORT CERT KEY.
# Asks for other options first, as servers do, and again under TLS; then answers what it is told.
import socket, ssl, sys

IAC, WILL, WONT, DO, SB, SE, START_TLS = 255, 251, 252, 253, 250, 240, 46
FOLLOWS = bytes([IAC, SB, START_TLS, 1, IAC, SE])

def expect(stream, wanted):
    got = b""
    while len(got) < len(wanted):
        piece = stream.recv(len(wanted) - len(got))
        if not piece:
            break
        got += piece
    assert got == wanted, (got, wanted)

def serve(stream):
    stream.sendall(bytes([IAC, DO, 24, IAC, WILL, 3]))
    expect(stream, bytes([IAC, WONT, 24, IAC, 254, 3]))
    stream.sendall(bytes([IAC, DO, START_TLS]))
    expect(stream, bytes([IAC, WILL, START_TLS]) + FOLLOWS)
    stream.sendall(FOLLOWS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[3], sys.argv[4])
    with context.wrap_socket(stream, server_side=True) as stream:
        stream.sendall(bytes([IAC, WILL, 3]) + b"what is it?\r\n")
        said = b""
        while b"snow" not in said:
            piece = stream.recv(1000)
            if not piece:
                return
            said += piece
        stream.sendall(b"it is snow, by " + stream.version().encode() + b".\r\n")
        stream.recv(1000)

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    stream, _ = listener.accept()
    try:
        serve(stream)
    except (OSError, AssertionError) as error:
        print(error, file=sys.stderr, flush=True)
    stream.close()
