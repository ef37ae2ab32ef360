"""Whole numbers that users give: ids, kinds, capacities."""

from __future__ import annotations

from operator import index

__all__ = ["whole_number"]


def whole_number(value: object) -> int | None:
    """``value`` as an int, if it is one or says that it is (``__index__``), as NumPy's are.

    None for everything else. True and False are answers and not numbers, and a float is none either
    if it happens to be whole.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
