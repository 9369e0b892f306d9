"""Checks the recording of a tap: whether it is TLS, and whether it contains certain words.

    read_tap.py DIRECTORY WORD...

Prints lines of KEY=VALUE: connections, bytes, records by type (RFC 8446 section 5.1), bytes outside of
TLS records, and the number of occurrences of the words.
"""

import collections
import pathlib
import sys

HEADER_BYTES = 5
TYPES = {20: "change-cipher-spec", 21: "alert", 22: "handshake", 23: "application-data"}
# A record has at most 2^14 bytes of plaintext and 2^11 bytes of overhead (TLS 1.2).
RECORD_BYTES_MAX = 16384 + 2048


def split_records(stream):
    """Counts the records at the start of a stream, and the bytes after the last record."""
    counts = collections.Counter()
    at = 0
    while at + HEADER_BYTES <= len(stream):
        kind, major = stream[at], stream[at + 1]
        length = int.from_bytes(stream[at + 3 : at + 5], "big")
        whole = at + HEADER_BYTES + length <= len(stream)
        if kind not in TYPES or major != 3 or length > RECORD_BYTES_MAX or not whole:
            break
        counts[TYPES[kind]] += 1
        at += HEADER_BYTES + length
    return counts, len(stream) - at


def main(directory, words):
    there = [path.read_bytes() for path in sorted(directory.glob("*.there"))]
    back = [path.read_bytes() for path in sorted(directory.glob("*.back"))]
    counts, outside, hits = collections.Counter(), 0, 0
    for stream in there + back:
        stream_counts, stream_outside = split_records(stream)
        counts += stream_counts
        outside += stream_outside
        hits += sum(stream.count(word.encode()) for word in words)
    print(f"connections={len(there)}")
    print(f"bytes={sum(map(len, there + back))}")
    print(f"tls-records={sum(counts.values())}")
    for name in TYPES.values():
        print(f"  {name}={counts[name]}")
    print(f"bytes-outside-records={outside}")
    print(f"clear-text-hits={hits}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
