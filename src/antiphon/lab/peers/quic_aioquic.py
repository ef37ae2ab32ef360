"""QUIC with aioquic, a reliable protocol in user mode over UDP: one stream with hand-made frames.

A frame is a four-byte length and the payload, gathered to 64 KiB per write. aioquic takes whatever
is written to a stream, however far behind the network is, so the sender paces itself: after every
256 KiB it writes a mark, which the receiver answers with one byte, and it waits as soon as three
are open. QUIC is always encrypted; the receiver signs a certificate for itself, and the sender does
not verify it, which costs or saves nothing after the handshake.
"""

from __future__ import annotations

import asyncio
import datetime
import ssl
import struct
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from aioquic.asyncio.client import connect
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from antiphon.lab.peers.base import Endpoint, EndpointConfig, OnData, Sender, payload_of
from antiphon.lab.peers.requests.loops import LoopThread

__all__ = ["ENDPOINT", "Quic"]

LENGTH = struct.Struct("<I")
# No message is that long.
MARK = 0xFFFF_FFFF
MARK_BYTES = 256 * 1024
OPEN_MARKS = 2
WRITE_BYTES = 64 * 1024
READ_BYTES = 256 * 1024
# One burst at most: on a loaded machine aioquic moves less than a megabyte a second.
BURST_BYTES = 512 * 1024
PROTOCOL = "antiphon-bench"
# An idle connection is closed after a minute by default; a sender may wait longer for its turn.
IDLE = 3600.0


def configuration(server: bool) -> QuicConfiguration:
    """For one side, with a new certificate for the server."""
    made = QuicConfiguration(
        is_client=not server,
        alpn_protocols=[PROTOCOL],
        idle_timeout=IDLE,
        verify_mode=None if server else ssl.CERT_NONE,
    )
    if server:
        made.certificate, made.private_key = self_signed()
    return made


def self_signed() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A certificate for the loopback, good for a day, and its key. Neither is written to a file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


class Stream:
    """One stream of a connection, with its open marks. Used on one loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unmarked = 0
        self._marks = 0

    async def write(self, frames: bytes) -> None:
        self._writer.write(frames)
        self._unmarked += len(frames)
        if self._unmarked >= MARK_BYTES:
            await self.mark(OPEN_MARKS)

    async def mark(self, most: int) -> None:
        """Set a mark, and wait until at most so many are open."""
        self._writer.write(LENGTH.pack(MARK))
        self._unmarked = 0
        self._marks += 1
        while self._marks > most:
            answers = await self._reader.read(self._marks)
            if not answers:
                raise ConnectionError("the receiver has closed the connection")
            self._marks -= len(answers)


class QuicSender(Sender):
    """One connection with one stream per target.

    Their loop has a thread of its own: what is lost has to be sent again also while the sending
    thread does something else.
    """

    def __init__(self, config: EndpointConfig, addresses: Mapping[int, str]) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._loop = LoopThread()
        self._stack = AsyncExitStack()
        self._streams = {
            target: self._loop.run(self._dial(addresses[target])) for target in config.targets
        }

    async def _dial(self, address: str) -> Stream:
        host, _, port = address.rpartition(":")
        connecting = connect(host, int(port), configuration=configuration(server=False))
        connection = await self._stack.enter_async_context(connecting)
        return Stream(*await connection.create_stream())

    def burst(self) -> int:
        burst = min(self._config.burst, BURST_BYTES // self._config.size)
        rounds = max(1, burst // len(self._streams))
        for stream in self._streams.values():
            self._loop.run(self._send_frames(stream, rounds))
        return rounds * len(self._streams)

    async def _send_frames(self, stream: Stream, count: int) -> None:
        payload = self._payload
        pack = LENGTH.pack
        frames = bytearray()
        for _ in range(count):
            frames += pack(len(payload))
            frames += payload
            if len(frames) >= WRITE_BYTES:
                await stream.write(bytes(frames))
                frames.clear()
        if frames:
            await stream.write(bytes(frames))

    def send(self, target: int, data: bytes) -> None:
        self._loop.run(self._streams[target].write(LENGTH.pack(len(data)) + data))

    def flush(self, timeout: float) -> None:
        for stream in self._streams.values():
            self._loop.run(asyncio.wait_for(stream.mark(0), timeout))

    def close(self) -> None:
        try:
            self._loop.run(asyncio.wait_for(self._stack.aclose(), 5.0))
        finally:
            self._loop.close()


class Quic(Endpoint):
    """A server on a loop in its own thread, and senders with loops of theirs."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._addresses: Mapping[int, str] = {}
        self._loop: LoopThread | None = None
        self._server: Any = None
        self._reading: set[asyncio.Task[None]] = set()
        self._fault = ""
        self._n = 0
        self._last: bytes | None = None

    def listen(self) -> str:
        self._loop = LoopThread()
        return self._loop.run(self._serve())

    async def _serve(self) -> str:
        self._server = await serve(
            self.config.host,
            0,
            configuration=configuration(server=True),
            stream_handler=self._accept,
        )
        # aioquic does not say on which port it listens.
        host, port = self._server._transport.get_extra_info("sockname")[:2]
        return f"{host}:{port}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.config.consume:
            task = asyncio.get_running_loop().create_task(self._read(reader, writer))
            self._reading.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._reading.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = f"{type(error).__name__}: {error}"

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_data = self.on_data
        length_at = LENGTH.unpack_from
        rest = b""
        while chunk := await reader.read(READ_BYTES):
            buffer = rest + chunk if rest else chunk
            position = 0
            end = len(buffer)
            while position + 4 <= end:
                start = position + 4
                length = length_at(buffer, position)[0]
                if length == MARK:
                    writer.write(b".")
                    position = start
                    continue
                stop = start + length
                if stop > end:
                    break
                self._last = buffer[start:stop]
                self._n += 1
                if on_data is not None:
                    on_data(self._last)
                position = stop
            rest = buffer[position:]

    def connect(self, addresses: Mapping[int, str]) -> None:
        self._addresses = addresses

    def sender(self) -> QuicSender:
        return QuicSender(self.config, self._addresses)

    def _count(self) -> tuple[int, int | None]:
        last = self._last
        return self._n, None if last is None else len(last)

    def fault(self) -> str:
        return self._fault

    async def _end(self) -> None:
        self._server.close()
        for task in tuple(self._reading):
            task.cancel()
        # One turn of the loop, for what the closing has begun.
        await asyncio.sleep(0)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run(self._end())
            self._loop.close()


ENDPOINT: type[Endpoint] = Quic
