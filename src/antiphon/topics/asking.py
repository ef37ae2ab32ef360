"""What a bus asks its broker, and what the broker answers: one request, one answer.

Asked once per publisher that records and per subscription that wants more than events as they
come, so that a refusal is an error of the call, and not a line in somebody's log.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from antiphon import errors
from antiphon.errors import (
    AntiphonError,
    ConfigError,
    PermissionDenied,
    ProtocolError,
    RemoteError,
    UnknownKind,
)
from antiphon.node import Node

__all__ = [
    "KIND",
    "Answer",
    "Claim",
    "Forget",
    "Heard",
    "Held",
    "NotAdmitted",
    "Question",
    "Record",
    "Release",
    "Replay",
    "Tell",
    "ask",
]

KIND = 34
_RAISED = ("ConfigError", "PermissionDenied", "StoreFull")
_DETAILS = ("setting", "client", "action", "topic", "reason", "path", "limit")


class NotAdmitted(PermissionDenied):
    """The broker has not heard yet who asks, or will never let it in."""


class Held(ConfigError):
    """The name is somebody's, who may just be leaving."""


class Record(msgspec.Struct, array_like=True, tag="record"):
    """Record this topic from now on."""

    topic: str


class Claim(msgspec.Struct, array_like=True, tag="claim"):
    """May I subscribe so? ``durable`` is claimed for the one who asks, if nobody holds it."""

    pattern: str
    durable: str | None = None
    group: str | None = None
    start: bool = False


class Forget(msgspec.Struct, array_like=True, tag="forget"):
    """Forget this durable subscription, with its position."""

    name: str


class Release(msgspec.Struct, array_like=True, tag="release"):
    """My subscription is closed: hand what it has not acknowledged to others."""

    flow: int


class Heard(msgspec.Struct, array_like=True, tag="heard"):
    """Do you know what I have said up to this version of my life, and have you that subscription?

    Two answers: whether it begins where it is to begin, and whether that is written down as well.
    """

    incarnation: int
    version: int
    flow: int | None = None


class Tell(msgspec.Struct, array_like=True, tag="tell"):
    """Which durable subscriptions are there?"""


class Replay(msgspec.Struct, array_like=True, tag="replay"):
    """Publish the dead letters of this durable subscription again, where they came from."""

    name: str
    limit: int = 0


Question = Record | Claim | Forget | Release | Heard | Tell | Replay


class Answer(msgspec.Struct, array_like=True):
    """``error`` is a class of `antiphon.errors`, or empty; ``facts`` are what was asked for."""

    error: str = ""
    text: str = ""
    facts: Any = None
    details: dict[str, str | int] = {}
    """Of the error: what it has as attributes."""

    @classmethod
    def refusing(cls, error: AntiphonError) -> Answer:
        """One that raises the same where it was asked."""
        found = {name: getattr(error, name, None) for name in _DETAILS}
        told = {name: one for name, one in found.items() if isinstance(one, str | int)}
        return cls(type(error).__name__, str(error), details=told)

    def check(self) -> Any:
        """The facts; raises what it refuses with."""
        if self.error:
            self._refuse()
        return self.facts

    def _refuse(self) -> NoReturn:
        if self.error == NotAdmitted.__name__:
            raise NotAdmitted(self.text, action="connect")
        if self.error == Held.__name__:
            raise Held(self.text, setting="durable")
        if self.error not in _RAISED:
            raise AntiphonError(self.text)
        kind = getattr(errors, self.error)
        facts = {name: one for name, one in self.details.items() if hasattr(kind, name)}
        raise kind(self.text, **facts)


_encode = msgspec.msgpack.Encoder().encode
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_question: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)


def decode_question(data: bytes) -> Question:
    """Raises msgspec.DecodeError or msgspec.ValidationError."""
    return _question.decode(data)


def encode_answer(answer: Answer) -> bytes:
    """For the wire."""
    return _encode(answer)


def ask(node: Node, broker: int, question: Question, timeout: float) -> Any:
    """The facts that a broker answers with; raises what it refuses with. Blocks.

    Raises `PeerUnreachable` and `RequestTimeout` as a request does.
    """
    try:
        _, answered = node._request(broker, _encode(question), KIND, timeout)
        return _answer.decode(answered).check()
    except (UnknownKind, RemoteError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(f"the broker does not understand the question: {error}") from None
