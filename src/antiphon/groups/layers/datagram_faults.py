"""Faults of datagrams, for tests: what comes is lost, doubled, held or mixed up, from a seed.

They stand right above `udp`, and the core carries them out where datagrams arrive, so that each
member loses others. `Partition` of ``faults`` cuts datagrams as well.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, ClassVar, Final

from antiphon.errors import ConfigError
from antiphon.groups.checks import check_number
from antiphon.groups.protocol import Layer

__all__ = ["KINDS", "DelayDatagrams", "DropDatagrams", "DuplicateDatagrams", "ShuffleDatagrams"]

_MOST = (1 << 32) - 1

KINDS: Final = {"data": 1, "head": 2, "base": 3, "ask-base": 4, "acknowledge": 5, "ask": 6}
"""What datagrams are for, as in ``native/groups/datagrams.hpp``."""


class DatagramFault(Layer):
    """What is common to them."""

    needs: ClassVar[tuple[str, ...]] = ("udp",)
    fault = True

    def faults(self) -> dict[str, Any]:
        """For the core."""
        raise NotImplementedError


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
        check_number("fraction", fraction, 0, 1, layer=self.name)
        self.fraction = fraction
        check = partial(check_number, layer=self.name, whole=True)
        check("first", first, 0, _MOST)
        check("every", every, 0, _MOST)
        check("seed", seed, 0, (1 << 63) - 1)
        if isinstance(kinds, str) or not set(kinds) <= KINDS.keys():
            raise ConfigError(
                f"kinds of layer {self.name!r} is {kinds!r}; choose from {', '.join(KINDS)}",
                setting="kinds",
                value=kinds,
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
        check_number("fraction", fraction, 0, 1, layer=self.name)
        self.fraction = fraction

    def faults(self) -> dict[str, Any]:
        return {"duplicate": self.fraction}


class DelayDatagrams(DatagramFault):
    """Holds each for between ``least`` and ``most`` seconds, by itself: so they overtake."""

    name = "delay-datagrams"
    instead_of = ("shuffle-datagrams",)

    def __init__(self, least: float, most: float) -> None:
        check_number("least", least, 0, 10, layer=self.name, unit="seconds")
        check_number("most", most, 0, 10, layer=self.name, unit="seconds")
        if least >= most:
            raise ConfigError(
                f"most of layer {self.name!r} is {most!r}; it must be longer than least "
                f"({least!r})",
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
    instead_of = ("delay-datagrams",)

    def __init__(self, depth: int = 8) -> None:
        check_number("depth", depth, 2, 1024, layer=self.name, whole=True)
        self.depth = depth

    def faults(self) -> dict[str, Any]:
        return {"shuffle": self.depth}
