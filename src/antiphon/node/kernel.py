"""What the kernel allows a node."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

__all__ = ["cores", "report_kernel_caps"]

log = logging.getLogger("antiphon.node")


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


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
