"""What all competing work has in common: it runs while a ``with`` block does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Load"]


class Load(ABC):
    """Work that competes with what is measured, from `start` to `close`."""

    @abstractmethod
    def start(self) -> None:
        """Begin. Returns when it competes."""

    @abstractmethod
    def close(self) -> None:
        """End it. Blocks until nothing is left; safe to call again."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
