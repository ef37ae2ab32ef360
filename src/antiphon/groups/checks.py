"""What an application gives to a group and its layers: names, receivers, numbers, switches."""

from __future__ import annotations

from antiphon.errors import ConfigError
from antiphon.groups.view import Member

__all__ = ["check_flag", "check_number", "check_text", "life_of"]

_NAME = 128


def check_text(setting: str, value: object) -> None:
    """Raises `ConfigError` for what cannot be a name."""
    # Lone surrogates are text to Python, and nothing that could be sent.
    if not isinstance(value, str) or not 0 < len(value.encode(errors="replace")) <= _NAME:
        wrong = True
    else:
        wrong = any("\ud800" <= one <= "\udfff" for one in value)
    if wrong:
        raise ConfigError(
            f"{setting} {value!r}: give text of 1 to {_NAME} bytes", setting=setting, value=value
        )


def check_number(
    setting: str,
    value: object,
    low: float,
    high: float,
    *,
    layer: str = "",
    whole: bool = False,
    unit: str = "",
    zero: str = "",
) -> None:
    """Raises `ConfigError` for what is no number from ``low`` to ``high``, of ``unit``; one that
    names the ``layer`` too, where it is one's. ``zero``: what 0 stands for, where it may be."""
    number = isinstance(value, int) or (isinstance(value, float) and not whole)
    if number and not isinstance(value, bool):
        assert isinstance(value, int | float)
        if low <= value <= high or (zero and value == 0):
            return
    kind = ("a whole number" if whole else "a number") + (f" of {unit}" if unit else "")
    bounds = f"from {low} to {high}" if whole else f"from {low:g} to {high:g}"
    raise ConfigError(
        f"{_of(setting, layer)} is {value!r}; it must be {kind} {bounds}"
        + (f", or 0 {zero}" if zero else ""),
        setting=setting,
        value=value,
    )


def check_flag(setting: str, value: object, *, layer: str = "") -> None:
    """Raises `ConfigError` for what is neither True nor False."""
    if not isinstance(value, bool):
        raise ConfigError(
            f"{_of(setting, layer)} is {value!r}; it must be True or False",
            setting=setting,
            value=value,
        )


def _of(setting: str, layer: str) -> str:
    return f"{setting} of layer {layer!r}" if layer else setting


def life_of(to: Member | None) -> int:
    """0 for all members. Raises `ConfigError` for what is no member."""
    if to is None:
        return 0
    if not isinstance(to, Member):
        raise ConfigError(
            f"to is {to!r}; it must be a Member, one of group.members", setting="to", value=to
        )
    return to.life
