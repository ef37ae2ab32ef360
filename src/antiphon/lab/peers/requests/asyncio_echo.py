"""asyncio streams with numbered frames: what a careful user writes without a library.

All tasks share one connection per target. A frame is a length, the number of the call and the
payload; one task reads the answers and wakes whoever waits for that number.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator

from antiphon.lab.peers.base import EndpointConfig
from antiphon.lab.peers.requests.base import RequestEndpoint, TaskCaller, host_and_port
from antiphon.lab.peers.requests.loops import LoopThread, Waiting

__all__ = ["ENDPOINT", "Streams"]

HEAD = struct.Struct("<IQ")
READ_BYTES = 256 * 1024


class Cutter:
    """Cuts what has been read into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def cut(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that are complete now: number and payload."""
        buffer = self._rest + chunk if self._rest else chunk
        position = 0
        while position + HEAD.size <= len(buffer):
            length, number = HEAD.unpack_from(buffer, position)
            start = position + HEAD.size
            if start + length > len(buffer):
                break
            position = start + length
            yield number, buffer[start:position]
        self._rest = buffer[position:]


class Connection:
    """The caller's end of one stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._waiting = Waiting()
        self._task = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        cutter = Cutter()
        while chunk := await reader.read(READ_BYTES):
            for number, data in cutter.cut(chunk):
                self._waiting.answer(number, data)
        self._waiting.fail(ConnectionResetError("the other end has closed"))

    async def call(self, data: bytes) -> bytes:
        number, answer = self._waiting.add()
        # Each task has one call under way, so what the transport may hold is bounded already.
        self._writer.write(HEAD.pack(len(data), number) + data)
        return await answer

    async def close(self) -> None:
        self._task.cancel()
        self._writer.close()
        await self._writer.wait_closed()


class Streams(RequestEndpoint):
    """A stream server on a loop in its own thread."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self._loop: LoopThread | None = None

    def listen(self) -> str:
        self._loop = LoopThread()
        return self._loop.run(self._serve())

    async def _serve(self) -> str:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            cutter = Cutter()
            while chunk := await reader.read(READ_BYTES):
                frames = [HEAD.pack(len(data), number) + data for number, data in cutter.cut(chunk)]
                writer.write(b"".join(frames))
                await writer.drain()
            writer.close()

        self._server = await asyncio.start_server(echo, self.config.host, 0, limit=READ_BYTES)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def task_caller(self) -> TaskCaller:
        connections = [
            Connection(*await asyncio.open_connection(*host_and_port(self.addresses[target])))
            for target in self.config.targets
        ]

        async def close() -> None:
            for connection in connections:
                await connection.close()

        return TaskCaller([connection.call for connection in connections], close)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()


ENDPOINT = Streams
