"""asyncio streams with hand-made frames and batches: what a careful user writes without a library.

A frame is a four-byte length and the payload. The sender gathers frames to 64 KiB, writes them with
one call and awaits ``drain``; the receiver reads what has come and cuts it into messages. A
``write`` and a ``readexactly`` per message would be several times slower.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Coroutine, Mapping
from typing import Any

from antiphon.lab.peers.base import (
    Endpoint,
    EndpointConfig,
    OnData,
    PullEndpoint,
    Sender,
    payload_of,
)

__all__ = ["ENDPOINT", "Streams"]

LENGTH = struct.Struct("<I")
WRITE_BYTES = 64 * 1024
READ_BYTES = 256 * 1024
STUCK = 20.0
# Entering and leaving the loop costs about as much as fifty messages: do it less often.
BURSTS_PER_ENTRY = 8


class StreamSender(Sender):
    """One loop and one connection per target, in the sending thread."""

    def __init__(self, config: EndpointConfig, addresses: Mapping[int, str]) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._loop = asyncio.new_event_loop()
        self._writers: dict[int, asyncio.StreamWriter] = {}
        for target in config.targets:
            host, _, port = addresses[target].rpartition(":")
            _, writer = self._run(asyncio.open_connection(host, int(port)))
            self._writers[target] = writer

    def _run(self, work: Coroutine[Any, Any, Any], timeout: float = STUCK) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, timeout))

    def burst(self) -> int:
        writers = list(self._writers.values())
        bursts = BURSTS_PER_ENTRY if self._config.messages is None else 1
        rounds = max(1, bursts * self._config.burst // len(writers))
        for writer in writers:
            self._run(self._send_frames(writer, rounds))
        return rounds * len(writers)

    async def _send_frames(self, writer: asyncio.StreamWriter, count: int) -> None:
        payload = self._payload
        pack = LENGTH.pack
        frames = bytearray()
        for _ in range(count):
            frames += pack(len(payload))
            frames += payload
            if len(frames) >= WRITE_BYTES:
                writer.write(frames)
                await writer.drain()
                # The transport may still hold the old one.
                frames = bytearray()
        if frames:
            writer.write(frames)
            await writer.drain()

    def send(self, target: int, data: bytes) -> None:
        writer = self._writers[target]
        writer.write(LENGTH.pack(len(data)) + data)
        self._run(writer.drain())

    def flush(self, timeout: float) -> None:
        self._run(self._empty(), timeout)

    async def _empty(self) -> None:
        for writer in self._writers.values():
            while writer.transport.get_write_buffer_size():
                await asyncio.sleep(0.001)

    def close(self) -> None:
        self._run(self._hang_up())
        self._loop.close()

    async def _hang_up(self) -> None:
        for writer in self._writers.values():
            writer.close()
            await writer.wait_closed()


class Streams(PullEndpoint):
    """A stream server on a loop in its own thread, and senders with loops of theirs."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._addresses: Mapping[int, str] = {}
        self._address = ""
        self._listening = threading.Event()

    def listen(self) -> str:
        self._start_receiving()
        if not self._listening.wait(10.0) or not self._address:
            raise TimeoutError(f"the stream server did not start: {self.fault() or 'no reason'}")
        return self._address

    def connect(self, addresses: Mapping[int, str]) -> None:
        self._addresses = addresses

    def sender(self) -> StreamSender:
        return StreamSender(self.config, self._addresses)

    def _receive(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._listening.set()

    async def _serve(self) -> None:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))
        on_data = self.on_data
        length_at = LENGTH.unpack_from

        async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal n, last
            rest = b""
            while chunk := await reader.read(READ_BYTES):
                buffer = rest + chunk if rest else chunk
                position = 0
                end = len(buffer)
                while position + 4 <= end:
                    start = position + 4
                    stop = start + length_at(buffer, position)[0]
                    if stop > end:
                        break
                    last = buffer[start:stop]
                    n += 1
                    if on_data is not None:
                        on_data(last)
                    position = stop
                rest = buffer[position:]
            writer.close()

        # The limit is what the reader holds before it pauses the transport.
        server = await asyncio.start_server(read, self.config.host, 0, limit=READ_BYTES)
        host, port = server.sockets[0].getsockname()[:2]
        self._address = f"{host}:{port}"
        self._listening.set()
        async with server:
            while not self._stop.is_set():
                await asyncio.sleep(0.1)

    def close(self) -> None:
        self._stop_receiving()


ENDPOINT: type[Endpoint] = Streams
