"""MQTT with paho-mqtt, through a mosquitto started for the run, at quality of service 0 or 1.

``qos0`` is at most once. The broker holds no publisher back for a slow subscriber: beyond its queue
it drops, in both, so a point may report losses. A sender waits after each burst until the last
message is written (``qos0``) or acknowledged by the broker (``qos1``), which is the pacing that the
client offers. The broker listens on a free port of the loopback, logs nothing and stores nothing.
"""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from antiphon.lab.peers import find_program
from antiphon.lab.peers.base import (
    LOOPBACK,
    Endpoint,
    EndpointConfig,
    OnData,
    Sender,
    payload_of,
)
from antiphon.lab.peers.servers import start_server

__all__ = ["ENDPOINT", "PubSub"]

START_TIMEOUT = 10.0
STUCK = 20.0
# What the broker queues for a subscriber before it drops. Its own default of 1000 is one burst.
QUEUE = 10_000
# With another user than root, a broker started by root would change to that one and so outlive us.
SETTINGS = """\
listener {port} {host}
allow_anonymous true
persistence false
log_dest none
user root
set_tcp_nodelay true
max_queued_messages {queue}
"""
# CONNECT of MQTT 3.1.1 with a clean session and no name, and how its answer begins.
HELLO = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00"
WELCOME = b"\x20\x02\x00\x00"


def topic_of(index: int) -> str:
    """The topic that the endpoint ``index`` subscribes to."""
    return f"antiphon/bench/{index}"


class Connection:
    """A connected client with its network thread, and what became of it."""

    def __init__(self, service: str) -> None:
        self.fault = ""
        self._connected = threading.Event()
        self._closing = False
        self.client: Any = mqtt.Client(CallbackAPIVersion.VERSION2, reconnect_on_failure=False)
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_socket_open = _without_delay
        host, _, port = service.rpartition(":")
        self.client.connect(host, int(port))
        self.client.loop_start()
        if not self._connected.wait(START_TIMEOUT) or self.fault:
            raise ConnectionError(f"mosquitto: {self.fault or 'no answer'}")

    def _on_connect(self, client: Any, data: Any, flags: Any, reason: Any, props: Any) -> None:
        if reason.is_failure:
            self.fault = f"refused: {reason}"
        self._connected.set()

    def _on_disconnect(self, client: Any, data: Any, flags: Any, reason: Any, props: Any) -> None:
        if not self._closing:
            self.fault = f"disconnected: {reason}"

    def close(self) -> None:
        self._closing = True
        self.client.disconnect()
        self.client.loop_stop()


def _without_delay(client: Any, data: Any, link: Any) -> None:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class PublishSender(Sender):
    """One client with its network thread per sending thread."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._payload = payload_of(config.size)
        self._topics = [topic_of(target) for target in config.targets]
        self._qos = 1 if config.variant == "qos1" else 0
        self._connection = Connection(config.service)
        self._publish = self._connection.client.publish
        self._last: Any = None
        self._unwaited = 0

    def burst(self) -> int:
        publish = self._publish
        payload = self._payload
        qos = self._qos
        rounds = max(1, self._config.burst // len(self._topics))
        info: Any = None
        for _ in range(rounds):
            for topic in self._topics:
                info = publish(topic, payload, qos)
        self._wait_for(info, STUCK)
        return rounds * len(self._topics)

    def send(self, target: int, data: bytes) -> None:
        self._last = self._publish(topic_of(target), data, self._qos)
        self._unwaited += 1
        if self._unwaited >= self._config.burst:
            self.flush(STUCK)

    def flush(self, timeout: float) -> None:
        if self._last is not None:
            self._wait_for(self._last, timeout)
            self._last = None
            self._unwaited = 0

    def _wait_for(self, info: Any, timeout: float) -> None:
        """The last one to be out: all are sent in turn."""
        if info.rc != mqtt.MQTT_ERR_SUCCESS or self._connection.fault:
            reason = self._connection.fault or mqtt.error_string(info.rc)
            raise ConnectionError(f"mosquitto: {reason}")
        info.wait_for_publish(timeout)
        if not info.is_published():
            raise TimeoutError(f"mosquitto: nothing was taken for {timeout:g} s")

    def close(self) -> None:
        self._connection.close()


class PubSub(Endpoint):
    """A client whose network thread calls back for every message."""

    def __init__(self, config: EndpointConfig, on_data: OnData | None = None) -> None:
        super().__init__(config, on_data)
        self._connection: Connection | None = None
        self._subscribed = threading.Event()
        self._reader: Callable[[], tuple[int, int | None]] = lambda: (0, None)

    @classmethod
    def serve(cls, host: str = LOOPBACK) -> tuple[str, list[int], Callable[[], None]]:
        program = find_program("mosquitto")
        if program is None:
            raise FileNotFoundError("mosquitto not found; install the package mosquitto")
        # The broker reads its settings once. The folder is gone before anybody can forget it.
        with tempfile.TemporaryDirectory(prefix="antiphon-mosquitto-") as folder:
            settings = Path(folder) / "mosquitto.conf"

            def command(port: int) -> list[str]:
                settings.write_text(SETTINGS.format(port=port, host=host, queue=QUEUE))
                return [program, "-c", str(settings)]

            port, pid, stop = start_server("mosquitto", command, _greeted, host)
        return f"{host}:{port}", [pid], stop

    def listen(self) -> str:
        topic = topic_of(self.config.index)
        if not self.config.consume:
            return topic
        self._connection = Connection(self.config.service)
        client = self._connection.client
        client.on_message = self._handler()
        client.on_subscribe = lambda *_: self._subscribed.set()
        client.subscribe(topic, 1 if self.config.variant == "qos1" else 0)
        if not self._subscribed.wait(START_TIMEOUT):
            raise TimeoutError(f"mosquitto did not subscribe: {self.fault() or 'no reason given'}")
        return topic

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Nothing to do: the broker is the address, and the topics follow from the indexes."""

    def sender(self) -> PublishSender:
        return PublishSender(self.config)

    def _handler(self) -> Any:
        n = 0
        last: bytes | None = None
        self._reader = lambda: (n, None if last is None else len(last))

        def count(client: Any, data: Any, message: Any) -> None:
            nonlocal n, last
            last = message.payload
            n += 1

        if (on_data := self.on_data) is None:
            return count

        def deliver(client: Any, data: Any, message: Any) -> None:
            nonlocal n
            on_data(message.payload)
            n += 1

        return deliver

    def _count(self) -> tuple[int, int | None]:
        return self._reader()

    def fault(self) -> str:
        return self._connection.fault if self._connection is not None else ""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _greeted(link: socket.socket) -> bool:
    link.sendall(HELLO)
    return link.recv(4) == WELCOME


ENDPOINT: type[Endpoint] = PubSub
