"""The tap's packet filter: the kernel drops packets of the loopback device that the tap need not search.

    TCP without payload   cannot contain a mark
    TCP of a clear port   may contain marks

All other packets pass, also those that the filter does not parse: IPv6, fragments, other devices.
"""

import ctypes
import socket
import struct

SO_ATTACH_FILTER = 26
# A field that is not in the packet: SKF_AD_OFF + SKF_AD_HATYPE.
DEVICE_TYPE = 0xFFFFF000 + 28
ARPHRD_LOOPBACK = 772
ETHERNET_BYTES = 14
ETHERTYPE_IPV4 = 0x0800
# More fragments, or an offset.
FRAGMENT = 0x3FFF
WHOLE_PACKET, NOTHING = 1 << 18, 0

# Classic BPF: class, size and mode, or operation and operand.
LOAD_HALF, LOAD_BYTE = 0x28, 0x30
LOAD_HALF_AT_X, LOAD_BYTE_AT_X = 0x48, 0x50
LOAD_HEADER_BYTES_TO_X, LOAD_STORED_TO_X, STORE = 0xB1, 0x61, 0x02
AND, SHIFT_RIGHT, ADD_X = 0x54, 0x74, 0x0C
IF_EQUAL, IF_EQUAL_X, IF_ANY_BIT = 0x15, 0x1D, 0x45
RETURN = 0x06


def attach(sock: socket.socket, clear_ports):
    """Installs the filter; packets that arrived before are not filtered."""
    program = assemble(instructions(clear_ports))
    buffer = ctypes.create_string_buffer(program, len(program))
    size = struct.calcsize("HBBI")
    pointer = struct.pack("HP", len(program) // size, ctypes.addressof(buffer))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, pointer)


def instructions(clear_ports):
    """Rows of operation, operand, and where it leads if true and if false: "pass", "drop" or on."""
    # The fields of TCP are relative to X, the length of the IP header.
    ip = tcp = ETHERNET_BYTES
    rows = [
        (LOAD_HALF, DEVICE_TYPE),
        (IF_EQUAL, ARPHRD_LOOPBACK, None, "pass"),
        (LOAD_HALF, ip - 2),
        (IF_EQUAL, ETHERTYPE_IPV4, None, "pass"),
        (LOAD_BYTE, ip + 9),
        (IF_EQUAL, socket.IPPROTO_TCP, None, "pass"),
        (LOAD_HALF, ip + 6),
        (IF_ANY_BIT, FRAGMENT, "pass", None),
        (LOAD_HEADER_BYTES_TO_X, ip),
    ]
    for field in (tcp, tcp + 2):
        rows.append((LOAD_HALF_AT_X, field))
        rows += [(IF_EQUAL, port, "drop", None) for port in clear_ports]
    rows += [
        # Both headers are as long as the packet: no payload.
        (LOAD_BYTE_AT_X, tcp + 12),
        (AND, 0xF0),
        (SHIFT_RIGHT, 2),
        (ADD_X, 0),
        (STORE, 0),
        (LOAD_STORED_TO_X, 0),
        (LOAD_HALF, ip + 2),
        (IF_EQUAL_X, 0, "drop", None),
    ]
    return [*rows, (RETURN, WHOLE_PACKET), (RETURN, NOTHING)]


def assemble(rows) -> bytes:
    ends = {"pass": len(rows) - 2, "drop": len(rows) - 1}
    program = b""
    for number, (operation, operand, *targets) in enumerate(rows):
        # A jump is relative to the next instruction.
        jumps = [ends[to] - number - 1 if to else 0 for to in targets] or [0, 0]
        program += struct.pack("HBBI", operation, *jumps, operand)
    return program
