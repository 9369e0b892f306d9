"""Many asyncio clients at once: clients.py HOST PORT COUNT [BYTES].

Each sends bytes of its own, ends, and reads them back; all are open at the same time.
"""

import asyncio
import collections
import hashlib
import sys

host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
size = int(sys.argv[4]) if len(sys.argv) > 4 else 2000


async def talk(number, everyone):
    try:
        reader, writer = await asyncio.open_connection(host, port)
        peer = writer.get_extra_info("peername")[:2]
    except OSError as error:
        return f"connect: {type(error).__name__}"
    finally:
        await everyone.wait()
    try:
        sent = hashlib.shake_128(str(number).encode()).digest(size)
        writer.write(sent)
        writer.write_eof()
        got = await reader.read()
        writer.close()
        return f"{peer} {'right' if got == sent else f'wrong: {len(got)}'}"
    except OSError as error:
        return f"{peer} {type(error).__name__}"


async def main():
    everyone = asyncio.Barrier(count)
    ends = await asyncio.gather(*(talk(number, everyone) for number in range(count)))
    for end, times in sorted(collections.Counter(ends).items()):
        print(times, end)


asyncio.run(asyncio.wait_for(main(), 150))
