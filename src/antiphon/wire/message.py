"""Typed messages: a class, its kind, and its bytes.

A `Message` is a msgspec Struct that carries a kind, the 16-bit number by which the receiver finds
its handler. It travels as a MessagePack array of its fields in order, so names cost nothing on the
wire and the rule for evolving a message is short: append fields, with defaults, and never remove,
reorder or retype one. An old receiver skips what it does not know, a new one fills in defaults.

The kind is an argument of the class statement and not a class attribute, so that it can be checked
while the class is made; msgspec builds its structs in a metaclass, hence the small subclass of it.

MessagePack and never pickle: bytes from the network must not be able to run code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

import msgspec

from antiphon.errors import ConfigError, ProtocolError
from antiphon.process_lock import ProcessLock
from antiphon.whole import whole_number

__all__ = [
    "FIRST_KIND",
    "LAST_KIND",
    "Message",
    "MessageMeta",
    "check_kind",
    "decoder_for",
    "encode",
    "forget",
    "kind_of",
    "registered",
    "undecodable",
]

FIRST_KIND = 64
"""Kinds below are the library's own; the receiver would take such a message for one of them."""

LAST_KIND = 65535

M = TypeVar("M", bound="Message")

_registry: dict[int, type[Message]] = {}
_registry_lock = ProcessLock()


def check_kind(kind: object) -> int:
    """``kind`` if users may have it; raises `ConfigError` with the range otherwise."""
    number = kind if type(kind) is int else whole_number(kind)
    if number is None:
        raise ConfigError(
            f"kind {kind!r} is not a number; give one from {FIRST_KIND} to {LAST_KIND}",
            setting="kind",
            value=kind,
        )
    if not FIRST_KIND <= number <= LAST_KIND:
        owner = "is the library's own" if 0 <= number < FIRST_KIND else "does not fit in 16 bits"
        raise ConfigError(
            f"kind {number} {owner}; give one from {FIRST_KIND} to {LAST_KIND}",
            setting="kind",
            value=kind,
        )
    return number


@dataclass_transform(field_specifiers=(msgspec.field,))
class MessageMeta(msgspec.StructMeta):
    """msgspec's metaclass with one more keyword. Everything else in the class statement is its."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        kind: int | None = None,
        **options: Any,
    ) -> MessageMeta:
        if kind is None:
            made = super().__new__(mcls, name, bases, namespace, **options)
            made.__kind__ = None
            return made
        number = check_kind(kind)
        # Held across the making, so that of two threads with one kind exactly one is refused.
        with _registry_lock:
            _refuse_taken(number, namespace.get("__module__"), namespace.get("__qualname__", name))
            made = super().__new__(mcls, name, bases, namespace, **options)
            made.__kind__ = number
            _registry[number] = cast("type[Message]", made)
        return made

    __kind__: int | None


def _refuse_taken(kind: int, module: object, qualname: object) -> None:
    """One kind, one class; but a cell of a notebook that is run again replaces its own class."""
    holder = _registry.get(kind)
    if holder is None or (holder.__module__, holder.__qualname__) == (module, qualname):
        return
    raise ConfigError(
        f"kind {kind} of {module}.{qualname} is taken by {holder.__module__}."
        f"{holder.__qualname__}; give one of them another kind",
        setting="kind",
        value=kind,
    )


class Message(msgspec.Struct, metaclass=MessageMeta, array_like=True):
    """Base of typed messages: ``class Ping(antiphon.Message, kind=100)``.

    Kinds from 64 to 65535 are yours; a kind that another class holds raises `ConfigError` when
    the second class is made. A subclass without a kind is an abstract base: it lends its fields
    and cannot be sent. Options of `msgspec.Struct` (``frozen``, ``kw_only``, ...) work as there.
    """

    __kind__: ClassVar[int | None]


def kind_of(message: type[Message] | Message) -> int:
    """The kind of a message class or instance; `ConfigError` for what has none."""
    cls = message if isinstance(message, type) else type(message)
    kind = getattr(cls, "__kind__", None)
    if kind is None:
        raise ConfigError(
            f"{cls.__module__}.{cls.__qualname__} has no kind; declare it as "
            f"class {cls.__name__}(antiphon.Message, kind=...)",
            setting="kind",
        )
    return int(kind)


def registered(kind: int) -> type[Message] | None:
    """The class that holds ``kind`` in this process, if any."""
    return _registry.get(kind)


def forget(cls: type[Message]) -> None:
    """Give a class's kind free again, for tests that make classes as they go. Idempotent."""
    with _registry_lock:
        kind = cls.__kind__
        if kind is not None and _registry.get(kind) is cls:
            del _registry[kind]


# An encoder keeps no state between calls, so one serves all threads; the bound method is exported
# itself because a wrapper would cost as much as encoding a small message.
encode: Callable[[Message], bytes] = msgspec.msgpack.Encoder().encode
"""The payload of a message. Raises TypeError for a field that MessagePack cannot hold."""


def decoder_for(cls: type[M]) -> Callable[[bytes], M]:
    """A function from payload to ``cls``, to be made once per registration and kept.

    It accepts any buffer and checks types; it raises `msgspec.DecodeError` (of which
    `msgspec.ValidationError` is one) for bytes that are not such a message.
    """
    kind_of(cls)
    return msgspec.msgpack.Decoder(cls).decode


def undecodable(
    decode: Any, source: int, kind: int, error: BaseException | None
) -> BaseException | None:
    """What to raise where ``decode``, of `decoder_for`, raised ``error`` on what ``source`` sent.

    Called by the core, for an inbox. A `ProtocolError` for bytes that are no such message; anything
    else is not about them.
    """
    if not isinstance(error, msgspec.DecodeError):
        return error
    wanted = decode.__self__.type.__name__
    return ProtocolError(
        f"a message of kind {kind} from node {source} is no {wanted}: {error}; "
        "compare the class there with the one here",
        peer=source,
    )
