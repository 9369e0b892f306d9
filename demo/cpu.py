"""Prints the CPU time that processes and their descendants have used, in milliseconds.

    cpu.py PID...

Prints one number for each PID on one line. The numbers come from /proc/PID/stat, in steps of a clock
tick (usually 10 ms).
"""

import os
import pathlib
import sys


def processes():
    """Parent and ticks (user + system) of every process, by pid."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name is in parentheses and may itself contain parentheses.
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(path.parent.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    return found


def ticks_of(pid, table):
    own = table[pid][1]
    children = (child for child, (parent, _) in table.items() if parent == pid)
    return own + sum(ticks_of(child, table) for child in children)


if __name__ == "__main__":
    now = processes()
    tick_ms = 1000 // os.sysconf("SC_CLK_TCK")
    print(*(ticks_of(int(pid), now) * tick_ms for pid in sys.argv[1:]))
