"""gRPC client streaming: a sender's messages are the requests of one call that does not end.

The handlers are generic and take bytes, so nothing is generated and nothing is decoded. gRPC takes
requests from an iterator on a thread of its own; that iterator is fed a burst at a time, and waits
for the flow control of HTTP/2 after each message.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from antiphon.lab.peers.base import Endpoint, EndpointConfig, OnData, Sender, payload_of
from antiphon.lab.peers.readers import ManyReaders

__all__ = ["ENDPOINT", "Streaming"]

SERVICE = "antiphon.Bench"
METHOD = f"/{SERVICE}/Take"
# Every stream occupies one; they are started as needed.
SERVER_THREADS = 128
STUCK = 20.0
OPTIONS = (
    # The machine's proxy, if it has one, is not for the loopback.
    ("grpc.enable_http_proxy", 0),
    # 4 MiB by default.
    ("grpc.max_receive_message_length", -1),
    # Else the senders of one process would share a connection.
    ("grpc.use_local_subchannel_pool", 1),
)


class Stream:
    """One call: what is put in is sent by a thread of gRPC, in order."""

    def __init__(self, address: str) -> None:
        # A count of the same message, or an event to set when everything before it is handed over.
        self._work: queue.Queue[tuple[bytes, int] | threading.Event | None] = queue.Queue(2)
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        grpc.channel_ready_future(self._channel).result(STUCK)
        self._call: Any = self._channel.stream_unary(METHOD).future(self._requests())

    def _requests(self) -> Iterator[bytes]:
        while (work := self._work.get()) is not None:
            if isinstance(work, threading.Event):
                work.set()
                continue
            data, count = work
            for _ in range(count):
                yield data

    def put(self, work: tuple[bytes, int] | threading.Event | None, timeout: float = STUCK) -> None:
        try:
            self._work.put(work, timeout=timeout)
        except queue.Full:
            raise self._reason(timeout) from None
        if self._call.done() and work is not None:
            raise self._reason(timeout)

    def flush(self, timeout: float) -> None:
        """Wait until everything is handed over."""
        done = threading.Event()
        self.put(done, timeout)
        if not done.wait(timeout):
            raise self._reason(timeout)

    def _reason(self, timeout: float) -> Exception:
        if self._call.done():
            return ConnectionError(f"the stream ended: {self._call.code()}")
        return TimeoutError(f"the receiver took nothing for {timeout:g} s")

    def close(self) -> None:
        """Half-close, and wait for the answer to the call: all has then been received."""
        with contextlib.suppress(Exception):
            self.put(None, 1.0)
            self._call.result(3.0)
        self._channel.close()


class StreamSender(Sender):
    """One channel and one stream per target."""

    def __init__(self, config: EndpointConfig, addresses: Mapping[int, str]) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._streams = {target: Stream(addresses[target]) for target in config.targets}

    def burst(self) -> int:
        rounds = max(1, self._config.burst // len(self._streams))
        for stream in self._streams.values():
            stream.put((self._payload, rounds))
        return rounds * len(self._streams)

    def send(self, target: int, data: bytes) -> None:
        self._streams[target].put((data, 1))

    def flush(self, timeout: float) -> None:
        for stream in self._streams.values():
            stream.flush(timeout)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()


class Streaming(ManyReaders):
    """A server whose handler reads the requests of a call, each call on its own thread."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._addresses: Mapping[int, str] = {}
        self._server: Any = None
        self._closing = threading.Event()
        self._fault = ""

    def listen(self) -> str:
        self._server = grpc.server(ThreadPoolExecutor(SERVER_THREADS), options=OPTIONS)
        take = self._take if self.config.consume else self._ignore
        handlers = {"Take": grpc.stream_unary_rpc_method_handler(take)}
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.add_generic_rpc_handlers((generic,))
        port = self._server.add_insecure_port(f"{self.config.host}:0")
        self._server.start()
        return f"{self.config.host}:{port}"

    def connect(self, addresses: Mapping[int, str]) -> None:
        self._addresses = addresses

    def sender(self) -> StreamSender:
        return StreamSender(self.config, self._addresses)

    def _take(self, requests: Iterator[bytes], context: Any) -> bytes:
        n = 0
        last: bytes | None = None
        self._readers.append(lambda: (n, None if last is None else len(last)))
        on_data = self.on_data
        try:
            for data in requests:
                last = data
                n += 1
                if on_data is not None:
                    on_data(data)
        except Exception as error:
            # A call that a sender has cancelled is its affair.
            if context.is_active():
                self._fault = f"{type(error).__name__}: {error}"
                raise
        return b""

    def _ignore(self, requests: Iterator[bytes], context: Any) -> bytes:
        self._closing.wait()
        return b""

    def fault(self) -> str:
        return self._fault

    def close(self) -> None:
        self._closing.set()
        if self._server is not None:
            self._server.stop(None).wait(5.0)


ENDPOINT: type[Endpoint] = Streaming
