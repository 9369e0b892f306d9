"""An FTP client under TLS that does what a test wants: ftps.py PORT WHAT [PEM of a client]."""

import ftplib
import io
import socket
import ssl
import sys

port, what = int(sys.argv[1]), sys.argv[2]
context = ssl.create_default_context(cafile="ca.pem")
if len(sys.argv) > 3:
    context.load_cert_chain(sys.argv[3], sys.argv[3].replace(".pem", ".key"))


class Client(ftplib.FTP_TLS):
    resumes = True
    data_context = context

    def ntransfercmd(self, command, rest=None):
        conn, size = ftplib.FTP.ntransfercmd(self, command, rest)
        if self._prot_p:
            session = self.sock.session if self.resumes else None
            conn = self.data_context.wrap_socket(
                conn, server_hostname=self.host, session=session)
        return conn, size


def connected():
    client = Client(context=context, timeout=20)
    client.connect("localhost", port)
    client.auth()
    client.login()
    client.prot_p()
    return client


def said(function, *arguments):
    try:
        return str(function(*arguments))
    except (OSError, EOFError, ftplib.Error) as error:
        return f"{type(error).__name__} {error}"


def load(client, name="file.txt"):
    whole = io.BytesIO()
    client.retrbinary(f"RETR {name}", whole.write)
    return whole.getvalue()


client = connected()
if what == "resume":
    print(load(client))
elif what == "full":
    client.resumes = False
    print(said(load, client))
elif what == "another":
    # The session of another control connection, from the same address to the same rule.
    other = connected()
    other.voidcmd("NOOP")
    client.__class__ = type("Mixed", (Client,), {})
    own = client.sock
    conn, _ = ftplib.FTP.ntransfercmd(client, "RETR file.txt")
    try:
        conn = context.wrap_socket(conn, server_hostname="localhost", session=other.sock.session)
        print("resumed", conn.session_reused, conn.recv(99))
    except OSError as error:
        print("refused", type(error).__name__)
elif what == "changed":
    # Another certificate than the control connection's.
    other = ssl.create_default_context(cafile="ca.pem")
    other.load_cert_chain("bob.pem", "bob.key")
    client.resumes, client.data_context = False, other
    print(said(load, client))
elif what == "cut":
    # An upload whose connection ends without a word of TLS.
    conn, _ = client.ntransfercmd("STOR up/cut")
    conn.sendall(b"half of it")
    plain = socket.socket(fileno=conn.detach())
    plain.shutdown(socket.SHUT_WR)
    print(said(client.voidresp))
elif what == "clear":
    print(said(client.sendcmd, "PROT C"), said(client.sendcmd, "CCC"), sep="\n")
    print(said(client.sendcmd, "PORT 192,0,2,1,20,20"))
    print(said(client.sendcmd, "AUTH TLS"))
elif what == "listeners":
    # Each PASV closes the listener before it; an end of the control connection closes the last.
    first, second = client.makepasv(), client.makepasv()
    for address in (first, second):
        for _ in range(500):
            result = said(socket.create_connection, address, 5)
            if "refused" in result:
                break
        print(result)
        client.close()
elif what == "hold":
    conn, _ = client.ntransfercmd("RETR file.txt")
    print("open", flush=True)
    sys.stdin.readline()
    print(conn.recv(99))
