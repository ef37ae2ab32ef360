"""Faults of datagrams, for tests: what comes is lost, doubled, held or mixed up, from a seed.

They stand right above `udp`, and the core carries them out where datagrams arrive, so that each
member loses others. `Partition` of ``faults`` cuts datagrams as well.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Final

from antiphon.errors import ConfigError
from antiphon.groups.protocol import Layer

__all__ = ["KINDS", "DelayDatagrams", "DropDatagrams", "DuplicateDatagrams", "ShuffleDatagrams"]

KINDS: Final = {"data": 1, "head": 2, "base": 3, "ask-base": 4, "acknowledge": 5, "ask": 6}
"""What datagrams are for, as in ``native/groups/datagrams.hpp``."""


class DatagramFault(Layer):
    """What is common to them."""

    needs: ClassVar[tuple[str, ...]] = ("udp",)

    def faults(self) -> dict[str, Any]:
        """For the core."""
        raise NotImplementedError


def _fraction(value: float) -> float:
    if not 0 <= value <= 1:
        raise ConfigError(
            f"fraction is {value!r}; it must be from 0 to 1", setting="fraction", value=value
        )
    return value


class DropDatagrams(DatagramFault):
    """Loses a fraction of those of some ``kinds`` (all); besides the ``first`` ones with data of
    each sender, and every so manieth (``every``)."""

    name = "drop-datagrams"

    def __init__(
        self,
        fraction: float = 0.0,
        *,
        kinds: Collection[str] = tuple(KINDS),
        first: int = 0,
        every: int = 0,
        seed: int = 1,
    ) -> None:
        self.fraction = _fraction(fraction)
        if not set(kinds) <= KINDS.keys():
            raise ConfigError(
                f"kinds is {kinds!r}; choose from {', '.join(KINDS)}", setting="kinds", value=kinds
            )
        self.kinds = tuple(kinds)
        self.first = first
        self.every = every
        self.seed = seed

    def faults(self) -> dict[str, Any]:
        return {
            "drop": self.fraction,
            "drop_kinds": sum(1 << KINDS[kind] for kind in self.kinds),
            "drop_first": self.first,
            "drop_every": self.every,
            "seed": self.seed,
        }


class DuplicateDatagrams(DatagramFault):
    """Hands on a fraction of them twice."""

    name = "duplicate-datagrams"

    def __init__(self, fraction: float) -> None:
        self.fraction = _fraction(fraction)

    def faults(self) -> dict[str, Any]:
        return {"duplicate": self.fraction}


class DelayDatagrams(DatagramFault):
    """Holds each for between ``least`` and ``most`` seconds, by itself: so they overtake."""

    name = "delay-datagrams"

    def __init__(self, least: float, most: float) -> None:
        if not 0 <= least < most <= 10:
            raise ConfigError(
                f"least is {least!r} and most {most!r}; they must be seconds from 0 to 10, and the "
                "second the longer one",
                setting="most",
                value=most,
            )
        self.least = least
        self.most = most

    def faults(self) -> dict[str, Any]:
        return {"delay_least": self.least, "delay_most": self.most}


class ShuffleDatagrams(DatagramFault):
    """Keeps ``depth`` of them, and hands on any of those."""

    name = "shuffle-datagrams"

    def __init__(self, depth: int = 8) -> None:
        if not 2 <= depth <= 1024:
            raise ConfigError(
                f"depth is {depth!r}; it must be from 2 to 1024", setting="depth", value=depth
            )
        self.depth = depth

    def faults(self) -> dict[str, Any]:
        return {"shuffle": self.depth}
