"""What the kernel allows a node."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

from antiphon.node.config import NodeConfig

__all__ = ["cores", "report_kernel_caps", "useful_spin"]

log = logging.getLogger("antiphon.node")


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def useful_spin(config: NodeConfig) -> float:
    """``spin_us``, where whoever is waited for can be at work meanwhile.

    On a single processor it waits for the one that looks. Below SCHED_FIFO it may wait for long:
    there, as long as something comes now and then, the thread that looks never sleeps.
    """
    return 0.0 if config.schedule.fifo_priority or cores() == 1 else config.spin_us


@functools.lru_cache(maxsize=8)
def report_kernel_caps(wanted: int) -> None:
    """Logs, once per size, that socket buffers will be smaller than wanted."""
    for name in ("rmem_max", "wmem_max"):
        try:
            cap = int(Path(f"/proc/sys/net/core/{name}").read_text())
        except (OSError, ValueError):
            continue
        if cap < wanted:
            log.info(
                "the kernel caps socket buffers at %d bytes, not %d; sysctl -w net.core.%s=%d",
                cap,
                wanted,
                name,
                wanted,
            )
