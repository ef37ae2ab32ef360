"""A dict that can be hashed and not changed, for fields of frozen dataclasses."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar, final

__all__ = ["FrozenDict"]

K = TypeVar("K")
V = TypeVar("V")


@final
class FrozenDict(dict[K, V]):
    """Not ``MappingProxyType``, which neither pickle nor ``dataclasses.asdict`` can take:
    configurations and statistics are sent to other processes and printed.
    """

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("this mapping is frozen; make a new one, as with dataclasses.replace()")

    __setitem__ = __delitem__ = _refuse
    __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)
