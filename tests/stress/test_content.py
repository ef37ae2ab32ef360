"""Filters on data while everything around them changes: subscriptions, documents, the process."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest

from antiphon import Broker, BrokerConfig, Bus, Regex, XPath
from integration.brokers import settled
from integration.buses import PATIENCE, Events, serves

pytestmark = [pytest.mark.stress, pytest.mark.timeout(300)]


def test_nobody_else_notices_documents_that_kill_and_expressions_that_hang(
    count: Callable[[int, int], int],
) -> None:
    """Forbidden: an event that the plain or the Regex subscription loses, or gets twice."""
    chance = random.Random(7)
    plain, found = Events(), Events()
    stop = threading.Event()
    config = BrokerConfig(max_block=30.0)
    with (
        Broker("tcp://127.0.0.1:0", config=config) as broker,
        Bus(broker.address) as here,
        Bus(broker.address) as there,
        Bus(broker.address) as hostile,
    ):
        there.subscribe("a", plain)
        there.subscribe("a", found, where=Regex("[05] "))
        settled(broker, subscriptions=2)

        def come_and_go() -> None:
            texts = ["//*[//*[//*]]", "count(//*) > 5", "/r", "//*[. = //*[. = //*]]"]
            while not stop.is_set():
                with hostile.subscribe("a", lambda event: None, where=XPath(chance.choice(texts))):
                    stop.wait(0.05)

        def kill() -> None:
            while not stop.wait(0.3):
                pid = broker._interests.judge.xml.pid
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

        threads = [threading.Thread(target=one) for one in (come_and_go, kill)]
        for thread in threads:
            thread.start()
        publisher = here.publisher("a")
        serves(publisher)
        large = b"<r>" + b"<a><b/></a>" * 2000 + b"</r>"
        sent, until = 0, time.monotonic() + count(3, 60)
        while time.monotonic() < until:
            body = large if chance.random() < 0.02 else b"<r/>"
            publisher.publish(b"%d %s" % (sent, body) if chance.random() < 0.5 else body)
            sent += 1
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        plain.first(sent, 60.0)
        assert plain.sequences == list(range(1, sent + 1))
        assert set(plain.missed) == {0}
        wanted = [e.sequence for e in plain.items if b"0 " in e.data[:12] or b"5 " in e.data[:12]]
        found.first(len(wanted), 60.0)
        assert found.sequences == wanted
        assert broker.statistics().content.judged == sent
