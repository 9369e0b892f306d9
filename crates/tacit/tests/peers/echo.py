"""An echo server that ends its direction when the client has: echo.py PORT [ADDRESS]...

It listens at 10.9.8.7, and at the addresses.
"""

import asyncio
import sys


async def serve(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except ConnectionError:
        pass
    writer.close()


async def main():
    server = await asyncio.start_server(serve, ["10.9.8.7", *sys.argv[2:]], int(sys.argv[1]), backlog=2048)
    await server.serve_forever()


asyncio.run(main())
