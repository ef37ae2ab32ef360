"""Names and receivers, as an application gives them to a group."""

from __future__ import annotations

from antiphon.errors import ConfigError
from antiphon.groups.view import Member

__all__ = ["check_text", "life_of"]

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


def life_of(to: Member | None) -> int:
    """0 for all members. Raises `ConfigError` for what is no member."""
    if to is None:
        return 0
    if not isinstance(to, Member):
        raise ConfigError(
            f"to is {to!r}; it must be a Member, one of group.members", setting="to", value=to
        )
    return to.life
