"""Copies kernel modules and the modules that they need into a folder, for an initramfs.

    modules.py MODULES TARGET NAME...

Prints the paths of the copies below TARGET, in an order in which they can be loaded. A name that is no
file in MODULES is built into the kernel, or the kernel does not have it.
"""

import lzma
import os
import re
import sys


def files_of(folder):
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            match = re.fullmatch(r"(.+)\.ko(\.xz)?", name)
            if match:
                found[match[1].replace("-", "_")] = os.path.join(parent, name)
    return found


def content_of(path):
    with open(path, "rb") as file:
        content = file.read()
    return lzma.decompress(content) if path.endswith(".xz") else content


def copy(name, files, target, done):
    """Copies a module after the modules that it needs."""
    if name in done or name not in files:
        return
    done.add(name)
    content = content_of(files[name])
    needed = re.search(rb"\0depends=([^\0]*)\0", b"\0" + content)
    for other in needed[1].decode().split(",") if needed else []:
        copy(other.replace("-", "_"), files, target, done)
    with open(os.path.join(target, name + ".ko"), "wb") as file:
        file.write(content)
    print(f"/modules/{name}.ko")


def main(folder, target, *names):
    files = files_of(folder)
    done = set()
    for name in names:
        copy(name.replace("-", "_"), files, target, done)


if __name__ == "__main__":
    main(*sys.argv[1:])
