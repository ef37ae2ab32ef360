"""pyzmq over TCP, in its two ways to ask.

``req-rep``: a REQ socket per calling thread. A single caller meets a single REP; more of them meet
a ROUTER and DEALER proxy before several REP sockets, as the ZeroMQ guide builds it.

``dealer-router``: threads have a DEALER socket each; tasks share one per target, from
``zmq.asyncio``, and tell their answers apart by a number in a frame of its own. The ROUTER is
served by a blocking loop in a thread: that answers a single caller sooner than ``zmq.asyncio``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import zmq
import zmq.asyncio

from antiphon.lab.peers.base import EndpointConfig
from antiphon.lab.peers.requests.base import STUCK, Call, Caller, RequestEndpoint, TaskCaller
from antiphon.lab.peers.requests.loops import Waiting

__all__ = ["ENDPOINT", "Zmq"]

STUCK_MS = int(STUCK * 1000)
REP_THREADS = 4
INSIDE = "inproc://rep"
# A ROUTER drops what exceeds its high-water mark: keep it well above the number of callers.
MARK = 100_000


class NumberedDealer:
    """A DEALER that the tasks of one loop share."""

    def __init__(self, context: Any, address: str) -> None:
        self._socket: Any = zmq.asyncio.Socket(context, zmq.DEALER)
        self._socket.set_hwm(MARK)
        self._socket.connect(address)
        self._waiting = Waiting()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while True:
                number, data = await self._socket.recv_multipart()
                self._waiting.answer(int.from_bytes(number, "little"), data)
        except zmq.ZMQError as error:
            self._waiting.fail(error)

    async def call(self, data: bytes) -> bytes:
        number, answer = self._waiting.add()
        await self._socket.send_multipart([number.to_bytes(8, "little"), data])
        return await answer

    async def close(self) -> None:
        self._task.cancel()
        self._socket.close(linger=0)


class Zmq(RequestEndpoint):
    """One context; the answering sockets live in threads that end with it."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self._context: Any = zmq.Context()
        self._threads: list[threading.Thread] = []

    def listen(self) -> str:
        if self.config.variant == "dealer-router":
            router, address = self._bound(zmq.ROUTER)
            self._in_thread(_echo_frames, router)
        elif self.config.threads == 1:
            rep, address = self._bound(zmq.REP)
            self._in_thread(_echo, rep)
        else:
            address = self._proxied()
        return address

    def _proxied(self) -> str:
        router, address = self._bound(zmq.ROUTER)
        dealer = self._context.socket(zmq.DEALER)
        dealer.bind(INSIDE)
        for _ in range(REP_THREADS):
            rep = self._context.socket(zmq.REP)
            rep.connect(INSIDE)
            self._in_thread(_echo, rep)
        self._in_thread(zmq.proxy, router, dealer)
        return address

    def _bound(self, kind: int) -> tuple[Any, str]:
        bound = self._context.socket(kind)
        bound.set_hwm(MARK)
        bound.bind(f"tcp://{self.config.host}:*")
        return bound, bound.getsockopt_string(zmq.LAST_ENDPOINT)

    def _in_thread(self, work: Callable[..., object], *sockets: Any) -> None:
        def run() -> None:
            try:
                work(*sockets)
            except zmq.ContextTerminated:
                pass
            finally:
                for each in sockets:
                    each.close(linger=0)

        thread = threading.Thread(target=run, name="answer", daemon=True)
        thread.start()
        self._threads.append(thread)

    def caller(self) -> Caller:
        kind = zmq.DEALER if self.config.variant == "dealer-router" else zmq.REQ
        sockets = [self._dialled(kind, self.addresses[target]) for target in self.config.targets]

        def close() -> None:
            for each in sockets:
                each.close(linger=0)

        return Caller([_call(each) for each in sockets], close)

    def _dialled(self, kind: int, address: str) -> Any:
        dialled = self._context.socket(kind)
        dialled.setsockopt(zmq.RCVTIMEO, STUCK_MS)
        dialled.setsockopt(zmq.SNDTIMEO, STUCK_MS)
        dialled.connect(address)
        return dialled

    async def task_caller(self) -> TaskCaller:
        dealers = [
            NumberedDealer(self._context, self.addresses[target]) for target in self.config.targets
        ]

        async def close() -> None:
            for dealer in dealers:
                await dealer.close()

        return TaskCaller([dealer.call for dealer in dealers], close)

    def close(self) -> None:
        # Every socket still in use raises ContextTerminated; this waits until all are closed.
        self._context.term()


def _echo(rep: Any) -> None:
    receive = rep.recv
    send = rep.send
    while True:
        send(receive())


def _echo_frames(router: Any) -> None:
    receive = router.recv_multipart
    send = router.send_multipart
    while True:
        send(receive())


def _call(dialled: Any) -> Call:
    send = dialled.send
    receive = dialled.recv

    def call(data: bytes) -> bytes:
        send(data)
        answer: bytes = receive()
        return answer

    return call


ENDPOINT = Zmq
