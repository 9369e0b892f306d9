# What the hostile peers of links share: argv[1] is the path of the socket of a link.
import json
import socket
import struct
import sys
import time

MESSAGE = 1


def dial():
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(10)
    stream.connect(sys.argv[1])
    return stream


def open_request(session, port=8080, kind="connected"):
    return {"open": {"session": session, "kind": kind, "address": f"10.9.8.7:{port}"}}


def frame(kind, payload=b""):
    """A frame of a link between kernels."""
    return struct.pack(">BH", kind, len(payload)) + payload


def message(content):
    return frame(MESSAGE, json.dumps(content).encode())


def framed_answer(stream):
    """The content of a message, another frame, or None at the end of the stream."""
    head = stream.recv(3, socket.MSG_WAITALL)
    if len(head) < 3:
        return None
    kind, length = struct.unpack(">BH", head)
    payload = stream.recv(length, socket.MSG_WAITALL) if length else b""
    return json.loads(payload) if kind == MESSAGE else (kind, payload)


class Wire:
    """Messages with one encoding: `encode` makes the bytes of a message, `answer` reads one."""

    def __init__(self, encode, answer):
        self.encode = encode
        self.answer = answer

    def send(self, content):
        stream = dial()
        stream.sendall(self.encode(content))
        return stream

    def ask(self, content):
        with self.send(content) as stream:
            return self.answer(stream)

    def hello(self, name):
        stream = self.send({"hello": {"version": 1, "run": name}})
        return stream, self.answer(stream)["welcome"]["session"]

    def is_not_answered(self, wrong):
        with dial() as stream:
            try:
                stream.sendall(wrong)
            except (BrokenPipeError, ConnectionResetError):
                pass
            return self.answer(stream) is None

    def end_within(self, content):
        """Ends streams in the middle of a request."""
        for cut in range(0, 12):
            with dial() as stream:
                stream.sendall(self.encode(content)[:cut])

    def name_what_does_not_exist(self):
        """A version, and sessions that never were or have ended."""
        assert "version" in self.ask({"hello": {"version": 99, "run": "x"}})["refused"]
        assert "does not know this run" in self.ask(open_request(4711))["refused"]
        control, ended = self.hello("short")
        control.close()
        time.sleep(0.2)
        assert "does not know this run" in self.ask(open_request(ended))["refused"]

    def flood(self, session, port, kind_of):
        """Sends 600 requests, and gives half up before the answer; returns the others' streams."""
        streams = []
        for number in range(600):
            stream = self.send(open_request(session, port, kind_of(number)))
            if number % 2:
                stream.close()
            else:
                streams.append(stream)
        return streams
