"""Whether a broker is well, asked from outside: by a command, a container, or whoever watches."""

from __future__ import annotations

import time

import msgspec

from antiphon.errors import AntiphonError
from antiphon.node import TLS, Node, NodeConfig
from antiphon.node.address import parse_address
from antiphon.node.config import Insecure
from antiphon.topics.announcements import decode, encode
from antiphon.topics.rights import Ask, Refused, Welcome

__all__ = ["Health", "check_health"]

_KIND = 33


class Health(msgspec.Struct, frozen=True):
    """What was found. ``seconds`` is how long the broker took to answer."""

    healthy: bool
    reason: str
    seconds: float = 0.0
    client: str | None = None
    """Who the token says this is; None: the broker lives, and would not let us in."""
    store_full: bool = False
    """It lives, and records nothing, for want of space. Only who is let in is told."""

    def __str__(self) -> str:
        return self.reason


def check_health(
    address: str,
    *,
    secret: str | bytes | Insecure | None = None,
    tls: TLS | None = None,
    token: str | None = None,
    timeout: float = 3.0,
) -> Health:
    """Asks the broker at ``address`` and waits for its answer, for at most ``timeout`` seconds.

    ``secret`` and ``tls`` are those of a node that may connect to it. A broker that answers is
    well, also one that would not let this client in. Raises `ConfigError` for an address that is
    none.
    """
    place = str(parse_address(address))
    config = NodeConfig(connect_timeout=timeout)
    began = time.monotonic()

    def left() -> float:
        return max(0.05, began + timeout - time.monotonic())

    with Node(listen=None, secret=secret, tls=tls, config=config) as node:
        try:
            broker, _ = node._identify(place, left())
            node.add_peer(broker, place)
            _, answer = node._request(broker, encode(Ask(token)), _KIND, left())
            word = decode(answer)
        except (msgspec.DecodeError, msgspec.ValidationError):
            word = None
        except AntiphonError as error:
            return Health(False, f"not well: {error}", time.monotonic() - began)
        took = time.monotonic() - began
        node.close(0.0)
    if isinstance(word, Welcome):
        reason = f"well, {word.broker}; known here as {word.client}"
        if word.store_full:
            reason += "; but its store has no space left, and nothing is recorded"
        return Health(True, reason, took, word.client, word.store_full)
    if isinstance(word, Refused):
        return Health(True, f"well, but it does not let this client in: {word.reason}", took)
    return Health(False, "not well: whoever listens there is no broker", took)
