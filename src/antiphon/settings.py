"""Where a setting comes from, the same way for every layer.

A layer describes its settings as a frozen dataclass and gives them a table name. For the table
``node`` and the field ``ring_bytes`` the first of these wins:

1. the argument in the program,
2. the variable ``ANTIPHON_NODE_RING_BYTES`` (an empty one counts as not set),
3. ``ring_bytes`` under ``[node]`` in the file that ``ANTIPHON_CONFIG`` names, else in
   ``./antiphon.toml`` if there is one,
4. the field's default.

Nothing is ignored in silence: an unknown key, table or variable raises `ConfigError` with the
names that would have been right, because a misspelt limit that does nothing is found only when
the limit was needed. `resolve` keeps the origin of every value, which ``antiphon doctor`` prints.

Receives from nobody but the caller's environment; hands plain values to the dataclass, whose own
``__post_init__`` judges them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from antiphon.errors import ConfigError
from antiphon.toml_lines import Keys, line_of, lines_of

__all__ = ["TABLES", "Setting", "load", "parse_size", "resolve"]

TABLES = ("node", "bus", "group", "broker", "bulk", "timing", "lab", "pipeline", "spark")
"""Tables that antiphon.toml may hold, also those of layers that this process does not use."""

T = TypeVar("T")

_UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_SIZE = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false", "no", "off"}


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One resolved value. ``source`` reads as in "set by ...": a variable, a file, "default".

    ``line`` is that of the file, 0 where the value comes from elsewhere.
    """

    name: str
    value: Any
    source: str
    line: int = 0

    @property
    def place(self) -> str:
        """The source, with the line."""
        return f"{self.source}, line {self.line}" if self.line else self.source


def parse_size(value: object) -> int:
    """Bytes from an int or from text such as ``"4MiB"``, ``"64 KiB"``, ``"1.5MB"`` or ``"4096"``.

    Raises ValueError when it is neither, or does not come to whole bytes.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{value!r} is not a size; write bytes, or a text such as '4MiB'")
    size = Fraction(match[1]) * _UNITS[match[2].lower()]
    if size.denominator != 1:
        raise ValueError(f"{value!r} does not come to whole bytes")
    return size.numerator


def load(
    cls: type[T],
    table: str,
    arguments: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> T:
    """Make a ``cls`` from arguments, environment, file and defaults; raises `ConfigError`.

    What the dataclass itself refuses is raised again with the place that the value came from.
    """
    settings = resolve(cls, table, arguments, environ=environ)
    try:
        return cls(**{name: setting.value for name, setting in settings.items()})
    except ConfigError as error:
        origin = settings.get(error.setting or "")
        if origin is None or origin.source in ("argument", "default"):
            raise
        raise ConfigError(
            f"{error} (set by {origin.place})", setting=error.setting, value=error.value
        ) from error


def resolve(
    cls: type[Any],
    table: str,
    arguments: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Setting]:
    """Every field of ``cls`` with its winning value and source, in the order of declaration."""
    environment = os.environ if environ is None else environ
    given = dict(arguments or {})
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    hints = typing.get_type_hints(cls)
    prefix = f"ANTIPHON_{table.upper()}_"

    for name in given:
        if name not in fields:
            raise _unknown(f"{cls.__name__} has no setting {name!r}", name, fields)
    _check_variables(environment, prefix, fields)
    path, in_file, text = _read_table(environment, table)
    for name in in_file:
        if name not in fields:
            line = line_of(lines_of(text), (table, name))
            raise _unknown(f"{path}: unknown key {name!r} in [{table}], line {line}", name, fields)

    resolved: dict[str, Setting] = {}
    lines = lines_of(text) if in_file else {}
    for name, field in fields.items():
        line = 0
        variable = prefix + name.upper()
        if name in given:
            value, source = given[name], "argument"
        elif environment.get(variable):
            value, source = environment[variable], variable
        elif name in in_file:
            value, source = in_file[name], f"{path} [{table}]"
            line = line_of(lines, (table, name))
        else:
            resolved[name] = Setting(name, _default(field), "default")
            continue
        size = bool(field.metadata.get("size"))
        try:
            converted = _convert(hints[name], value, size)
        except ValueError as error:
            inside = error.keys if isinstance(error, _Inside) else ()
            full = ".".join(map(str, (name, *inside)))
            if line:
                line = line_of(lines, (table, name, *inside))
            place = Setting(name, value, source, line).place
            where = f"argument {full}" if source == "argument" else f"{full}, set by {place}"
            raise ConfigError(f"{where}: {error}", setting=full, value=value) from None
        resolved[name] = Setting(name, converted, source, line)
    return resolved


class _Inside(ValueError):
    """What is wrong with a value that stands within another one: ``keys`` lead to it."""

    def __init__(self, text: str, keys: Keys) -> None:
        super().__init__(text)
        self.keys = keys


def _inside(key: str | int, error: ValueError) -> _Inside:
    return _Inside(str(error), (key, *(error.keys if isinstance(error, _Inside) else ())))


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise ConfigError(f"setting {field.name!r} has no default; pass it", setting=field.name)


def _check_variables(
    environment: Mapping[str, str], prefix: str, fields: Mapping[str, Any]
) -> None:
    known = {prefix + name.upper() for name in fields}
    for variable in environment:
        if variable.startswith(prefix) and variable not in known:
            raise _unknown(f"environment: unknown variable {variable}", variable, sorted(known))


def _unknown(what: str, name: str, allowed: Iterable[str]) -> ConfigError:
    names = list(allowed)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return ConfigError(f"{what}; {hint}allowed are {', '.join(names)}", setting=name)


def _read_table(environment: Mapping[str, str], table: str) -> tuple[Path, dict[str, Any], str]:
    """The file, what the table holds, and the whole text, to find lines in."""
    named = environment.get("ANTIPHON_CONFIG")
    path = Path(named) if named else Path("antiphon.toml")
    try:
        text = path.read_bytes().decode()
        document = tomllib.loads(text)
    except FileNotFoundError:
        if not named:
            return path, {}, ""
        raise ConfigError(
            f"ANTIPHON_CONFIG names {path}, which does not exist; correct it or unset it",
            setting="ANTIPHON_CONFIG",
            value=named,
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", setting=str(path)) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8", setting=str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {_toml_fault(error, text)}", setting=str(path)) from None

    for name in document:
        if name not in TABLES:
            line = line_of(lines_of(text), (name,))
            raise _unknown(f"{path}: unknown table [{name}], line {line}", name, TABLES)
    values = document.get(table, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: {table} must be a table; write [{table}]", setting=table)
    return path, values, text


def _toml_fault(error: tomllib.TOMLDecodeError, text: str) -> str:
    """tomllib says "at end of document" for what is left open; give that a line number too."""
    message = str(error)
    if re.search(r"at line \d+", message):
        return message
    return f"{message.removesuffix(' (at end of document)')} (at line {text.count(chr(10)) + 1})"


def _convert(hint: Any, value: object, size: bool) -> Any:
    """``value`` as the field's type. Text is read, other types must already be right."""
    options = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    if type(None) in options:
        if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
            return None
        options = tuple(option for option in options if option is not type(None))
    (wanted,) = options if len(options) == 1 else (object,)

    origin = typing.get_origin(wanted) or wanted
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _convert_mapping(typing.get_args(wanted), value, size)
    if wanted is int:
        return parse_size(value) if size else _convert_int(value)
    if wanted is float:
        return _convert_float(value)
    if wanted is bool:
        return _convert_bool(value)
    if wanted is str and not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        return value if isinstance(value, wanted) else _convert_record(wanted, value)
    if origin is tuple:
        return _convert_tuple(typing.get_args(wanted), value)
    return value


_UNIONS = (typing.Union, types.UnionType)


def _convert_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return int(value)
    raise ValueError(f"{value!r} is not a whole number")


def _convert_float(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    raise ValueError(f"{value!r} is not a number")


def _convert_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in _YES or text in _NO:
        return text in _YES
    raise ValueError(f"{value!r} is not true or false")


def _convert_tuple(arguments: tuple[Any, ...], value: object) -> tuple[Any, ...]:
    """A TOML array, or words in a variable."""
    items = value.split() if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError(f"{value!r} is not a list")
    converted = []
    for number, item in enumerate(items):
        try:
            converted.append(_convert(arguments[0], item, False))
        except ValueError as error:
            raise _inside(number, error) from None
    return tuple(converted)


def _convert_record(cls: type[Any], value: object) -> Any:
    """Settings within a setting: a TOML table, or ``name=value, name=value`` in a variable."""
    given = _convert_mapping((str, object), value, False)
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    converted = {}
    for name, item in given.items():
        if name not in fields:
            raise _Inside(f"{name!r} is none of {', '.join(fields)}", (name,))
        try:
            size = bool(fields[name].metadata.get("size"))
            converted[name] = _convert(hints[name], item, size)
        except ValueError as error:
            raise _inside(name, error) from None
    for name, field in fields.items():
        missing = field.default is dataclasses.MISSING is field.default_factory
        if missing and name not in converted:
            raise ValueError(f"{name} is missing")
    try:
        return cls(**converted)
    except ConfigError as error:
        known = error.setting in fields
        raise _Inside(str(error), (error.setting,) if known and error.setting else ()) from None


def _convert_mapping(arguments: tuple[Any, ...], value: object, size: bool) -> dict[Any, Any]:
    """A TOML table, or ``16KiB=256, 64KiB=64`` in a variable. Only the keys may be sizes."""
    if isinstance(value, str):
        pairs = [entry.partition("=") for entry in value.split(",") if entry.strip()]
        if not all(separator for _, separator, _ in pairs):
            raise ValueError(f"{value!r} is not of the form 'key=value, key=value'")
        value = {key.strip(): item.strip() for key, _, item in pairs}
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a table")
    key_hint, item_hint = arguments or (object, object)
    converted = {}
    for key, item in value.items():
        name = _convert(key_hint, key, size)
        if name in converted:
            raise ValueError(f"{key!r} is given twice")
        try:
            converted[name] = _convert(item_hint, item, False)
        except ValueError as error:
            raise _inside(key, error) from None
    return converted
