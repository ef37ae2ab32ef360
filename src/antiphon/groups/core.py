"""The native half of a group, made as the layers of its stack say.

Receives the stack and the node of a `Group`; hands it a `GroupCore`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from antiphon._core import GroupCore
from antiphon.errors import ConfigError
from antiphon.groups.datagrams import datagram_settings, report_buffer
from antiphon.groups.protocol import Stack
from antiphon.node import Node

__all__ = ["make_core"]

_MESSAGES: Final = 65536


def make_core(
    stack: Stack, name: str, node: Node, capacity: int, on_error: Callable[[BaseException], None]
) -> GroupCore:
    """Without a layer that carries messages it has views to hand out, and no room for any.

    Raises `ConfigError` where a setting is none.
    """
    datagrams = datagram_settings(stack, name, node, _MESSAGES)
    fifo: Any = stack.find("fifo")
    try:
        core = GroupCore(
            node,
            fifo.window_bytes if fifo else 0,
            _MESSAGES,
            fifo.unicast_bytes if fifo else 0,
            capacity,
            stack.find("fragmentation") is None,
            name,
            on_error,
            datagrams,
        )
    except (ValueError, RuntimeError) as error:
        if datagrams is None:
            raise
        raise ConfigError(f"stack over UDP: {error}", setting="stack") from error
    if datagrams is not None:
        report_buffer(stack, core.datagram_buffer)
    return core
