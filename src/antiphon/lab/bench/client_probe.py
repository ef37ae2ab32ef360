"""What a broker costs whose clients are there and say nothing.

The clients are not ours: a swarm of plain sockets in one process, each with both its channels, that
speaks the hand-shake, says who it is, and then only lives. So all that is measured is the broker.
"""

from __future__ import annotations

import time

from antiphon.lab.bench.machine import resident_bytes, threads_cpu
from antiphon.lab.bench.probes import Connections
from antiphon.lab.bench.processes import Crew, WorkerFailed
from antiphon.lab.peers.brokers import BROKER_PEERS

__all__ = ["CLIENTS", "HEARTBEAT", "probe_clients"]

CLIENTS = 4000
HEARTBEAT = 10.0
"""Seconds, of the broker and of every client."""
SWARM = "antiphon.lab.bench.swarm_worker"
START_TIMEOUT = 30.0
CONNECT_TIMEOUT = 180.0
SETTLE_SECONDS = 2.0


def probe_clients(seconds: float = 20.0, clients: int = CLIENTS) -> Connections | str:
    """Measure a broker with idle clients, or say in one line why not."""
    if missing := BROKER_PEERS["antiphon"].missing():
        return missing
    try:
        with Crew() as crew:
            broker = crew.start(
                "broker", ("-m", SWARM), before=("env", f"ANTIPHON_NODE_HEARTBEAT={HEARTBEAT:g}")
            )
            swarm = crew.start("swarm", ("-m", SWARM))
            facts = broker.ask("broker", START_TIMEOUT, clients=clients)
            # One that comes and goes: what is made for the first of them is not of each.
            swarm.ask("join", CONNECT_TIMEOUT, address=facts["address"], clients=1, beat=HEARTBEAT)
            time.sleep(SETTLE_SECONDS)
            before = resident_bytes(broker.pid)
            swarm.ask(
                "join", CONNECT_TIMEOUT, address=facts["address"], clients=clients, beat=HEARTBEAT
            )
            broker.ask("wait", CONNECT_TIMEOUT, clients=clients + 1)
            time.sleep(SETTLE_SECONDS)
            each = (resident_bytes(broker.pid) - before) / clients
            used, began = threads_cpu(broker.pid), time.monotonic()
            time.sleep(seconds)
            elapsed = time.monotonic() - began
            share = (threads_cpu(broker.pid) - used) / elapsed
            alive = int(broker.ask("alive", START_TIMEOUT)["alive"]) - 1
            return Connections(clients, alive, each, share, elapsed)
    except WorkerFailed as error:
        return str(error)
