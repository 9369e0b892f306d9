"""A tap on the network: relays TCP connections and records the bytes of each direction.

    tap.py LISTEN_PORT CONNECT_PORT DIRECTORY

Writes DIRECTORY/N.there and DIRECTORY/N.back for connection N, and creates DIRECTORY/ready when it
listens. Uses loopback only. The recording is what an attacker between the two sides can read.
"""

import asyncio
import itertools
import pathlib
import sys

READ_BYTES = 65536


async def copy(reader, writer, record):
    """Relays one direction until its end, then closes it."""
    try:
        while data := await reader.read(READ_BYTES):
            record.write(data)
            record.flush()
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except ConnectionError:
        writer.transport.abort()


async def main(listen_port, connect_port, directory):
    numbers = itertools.count(1)

    async def serve(near_reader, near_writer):
        name = directory / f"{next(numbers)}"
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", connect_port)
        with (
            open(f"{name}.there", "wb") as there,
            open(f"{name}.back", "wb") as back,
        ):
            await asyncio.gather(
                copy(near_reader, far_writer, there),
                copy(far_reader, near_writer, back),
            )
        near_writer.close()
        far_writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", listen_port)
    (directory / "ready").touch()
    await server.serve_forever()


if __name__ == "__main__":
    tap_directory = pathlib.Path(sys.argv[3])
    tap_directory.mkdir()
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), tap_directory))
