"""Where a setting comes from, the same way for every layer.

A layer describes its settings as a frozen dataclass and gives them a table name. For the table
``node`` and the field ``ring_bytes`` the first of these wins:

1. the argument in the program,
2. the variable ``ANTIPHON_NODE_RING_BYTES`` (an empty one counts as not set),
3. ``ring_bytes`` under ``[node]`` in the file that ``ANTIPHON_CONFIG`` names, else in
   ``./antiphon.toml`` if there is one,
4. the field's default.

It is decided field by field: a configuration that was made in the program knows which of its
fields were written (`Settings`), and whoever opens something takes the others from the rest of the
list (`complete`). A setting that is itself made of settings, such as a node's ``schedule``, is put
together in the same way.

Nothing is ignored in silence, because a misspelt limit that does nothing is found only when the
limit was needed. An unknown key or table of the file raises `ConfigError` with the names that would
have been right, and so does an unknown variable under the prefix of the table that is resolved.
Other variables that begin with ``ANTIPHON_`` may be somebody else's: those that nothing here reads
are logged as a warning, once in a process, and ``antiphon doctor`` lists them. `resolve` keeps the
origin of every value, which ``antiphon doctor`` prints too.

Receives from nobody but the caller's environment; hands plain values to the dataclass, whose own
``__post_init__`` judges them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import logging
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from antiphon.errors import ConfigError
from antiphon.process_lock import ProcessLock
from antiphon.toml_lines import Keys, line_of, lines_of

__all__ = [
    "OTHER_VARIABLES",
    "TABLES",
    "Setting",
    "Settings",
    "complete",
    "load",
    "parse_size",
    "resolve",
    "unknown_variables",
    "whole",
]

log = logging.getLogger(__name__)

TABLES = ("node", "bus", "group", "broker", "bulk", "timing", "lab", "pipeline", "spark")
"""Tables that antiphon.toml may hold, also those of layers that this process does not use."""

OTHER_VARIABLES = (
    "ANTIPHON_CONFIG",
    "ANTIPHON_JGROUPS_JAR",
    "ANTIPHON_REQUIRE",
    "ANTIPHON_SEED",
    "ANTIPHON_SSH",
    "ANTIPHON_STRESS",
)
"""What the library, the lab and the tests read that is no setting of a table."""

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


class Settings:
    """Base of a frozen dataclass of settings, which knows which of its fields were written.

    That is no field: two that hold the same values are equal, whoever wrote them. Copies and
    pickles know it too; what `dataclasses.replace` makes counts as written in every field.
    ``table``, where there is one, is that of `TABLES`.
    """

    _tables: ClassVar[dict[str, type[Settings]]] = {}
    _written: frozenset[str]

    def __init_subclass__(cls, table: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if table is not None:
            Settings._tables[table] = cls

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        in_order = (name for name, _ in zip(_fields(cls), args, strict=False))
        object.__setattr__(self, "_written", frozenset((*in_order, *kwargs)))
        return self


def whole(settings: T) -> T:
    """The same values, all of them written: nothing is left to the environment and the file."""
    return dataclasses.replace(settings) if isinstance(settings, Settings) else settings  # type: ignore[type-var]


def _is_whole(settings: Settings) -> bool:
    return all(
        name in settings._written
        and (not isinstance(value := getattr(settings, name), Settings) or _is_whole(value))
        for name in _fields(type(settings))
    )


def _as_written(settings: Settings) -> dict[str, Any]:
    return {
        name: getattr(settings, name)
        for name in _fields(type(settings))
        if name in settings._written
    }


def _fields(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls) if field.init}


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
    _warn_once()
    try:
        return cls(**{name: setting.value for name, setting in settings.items()})
    except ConfigError as error:
        origins = _origins(error, settings)
        if not origins:
            raise
        raise ConfigError(
            f"{error} ({origins})", setting=error.setting, value=error.value
        ) from error


def _origins(error: ConfigError, settings: Mapping[str, Setting]) -> str:
    """Where the value came from, and those that it was compared with, if not from the program."""
    elsewhere = {
        name: f"set by {setting.place}"
        for name, setting in settings.items()
        if setting.source not in ("argument", "default")
    }
    words = set(re.findall(r"\w+", str(error)))
    places = [
        place if name == error.setting else f"{name} {place}"
        for name, place in elsewhere.items()
        if name == error.setting or name in words
    ]
    return ", ".join(places)


def complete(
    cls: type[T],
    table: str,
    config: T | None,
    arguments: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> T:
    """The settings in force where ``config`` was given, None for nothing, and ``arguments`` too.

    What is written in one of them holds, ``arguments`` first; the rest comes from the environment,
    the file and the defaults. Raises `ConfigError`.
    """
    if config is None:
        return load(cls, table, arguments, environ=environ)
    if not isinstance(config, Settings) or (_is_whole(config) and not arguments):
        return config
    given = {**_as_written(config), **(arguments or {})}
    return load(type(config), table, given, environ=environ)


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
    fields = _fields(cls)
    hints = typing.get_type_hints(cls)
    prefix = _prefix(table)

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
        variable = prefix + name.upper()
        found = []
        if name in given:
            found.append(Setting(name, given[name], "argument"))
        if environment.get(variable):
            found.append(Setting(name, environment[variable], variable))
        if name in in_file:
            line = line_of(lines, (table, name))
            found.append(Setting(name, in_file[name], f"{path} [{table}]", line))

        settled: Setting | None = None
        for one in found:
            if settled is None:
                settled = _converted(one, hints[name], field, table, lines)
            elif isinstance(settled.value, Settings) and not _is_whole(settled.value):
                settled = _filled(settled, _converted(one, hints[name], field, table, lines))
        if settled is None:
            settled = Setting(name, _default(field), "default")
        resolved[name] = dataclasses.replace(settled, value=whole(settled.value))
    return resolved


def _converted(
    found: Setting, hint: Any, field: dataclasses.Field[Any], table: str, lines: dict[Keys, int]
) -> Setting:
    """With the value as the field's type; raises `ConfigError` that names the place."""
    try:
        value = _convert(hint, found.value, bool(field.metadata.get("size")))
    except ValueError as error:
        inside = error.keys if isinstance(error, _Inside) else ()
        full = ".".join(map(str, (found.name, *inside)))
        if found.line:
            line = line_of(lines, (table, found.name, *inside))
            found = dataclasses.replace(found, line=line)
        argument = found.source == "argument"
        where = f"argument {full}" if argument else f"{full}, set by {found.place}"
        raise ConfigError(f"{where}: {error}", setting=full, value=found.value) from None
    return dataclasses.replace(found, value=value)


def _filled(first: Setting, rest: Setting) -> Setting:
    """Settings within a setting: what ``first`` does not say is as ``rest`` says."""
    if not isinstance(rest.value, Settings) or rest.value._written <= first.value._written:
        return first
    value = type(first.value)(**{**_as_written(rest.value), **_as_written(first.value)})
    return Setting(first.name, value, f"{first.source} and {rest.source}")


def _prefix(table: str) -> str:
    return f"ANTIPHON_{table.upper()}_"


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Variables that begin with ``ANTIPHON_`` and that nothing reads, with the nearest name.

    Those of a table whose settings this process has not imported are not judged, and empty ones
    count as not set.
    """
    environment = os.environ if environ is None else environ
    known = list(OTHER_VARIABLES)
    unjudged = [_prefix(table) for table in _WITH_SETTINGS if table not in Settings._tables]
    for table, cls in Settings._tables.items():
        known += [_prefix(table) + name.upper() for name in _fields(cls)]
    unknown: dict[str, str | None] = {}
    for variable in sorted(environment):
        if (
            variable.startswith("ANTIPHON_")
            and environment[variable]
            and variable not in known
            and not variable.startswith(tuple(unjudged))
        ):
            unknown[variable] = _nearest(variable, known)
    return unknown


_WITH_SETTINGS = ("node", "bus", "group", "broker")
_warned: list[str] = []
_warning = ProcessLock()


def _warn_once() -> None:
    with _warning:
        unknown = {} if _warned else unknown_variables()
        _warned.extend(unknown)
    if unknown:
        log.warning(
            "environment: nothing reads %s; correct the name, or choose one that does not begin "
            "with ANTIPHON_ if it is your own",
            ", ".join(
                f"{name} (did you mean {nearest}?)" if nearest else name
                for name, nearest in unknown.items()
            ),
        )


def _nearest(name: str, allowed: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(allowed), n=1)), None)


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
    close = _nearest(name, names)
    hint = f"did you mean {close}? " if close else ""
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
    fields = _fields(cls)
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
