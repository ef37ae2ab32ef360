"""What clients ask a broker: to record a topic, and about subscriptions that it remembers."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import msgspec

from antiphon.errors import AntiphonError, ProtocolError
from antiphon.node import Node
from antiphon.topics.asking import (
    KIND,
    Answer,
    Claim,
    Forget,
    Heard,
    Question,
    Record,
    Release,
    Replay,
    Tell,
    decode_question,
    encode_answer,
)

__all__ = ["Answering", "answer_questions"]

log = logging.getLogger("antiphon.broker")

_CAPACITY = 4096


class Answering(Protocol):
    """Who answers. On a scheduler thread, without a lock; raises what the one who asks raises."""

    def record(self, source: int, topic: str) -> None: ...
    def claim(self, source: int, claim: Claim) -> None: ...
    def forget(self, source: int, name: str) -> None: ...
    def release(self, source: int, flow: int) -> None: ...
    def heard(self, source: int, question: Heard) -> tuple[bool, bool]: ...
    def durables(self, source: int) -> list[dict[str, Any]]: ...
    def replay_dead(self, source: int, name: str, limit: int) -> int: ...


def answer_questions(node: Node, broker: Answering) -> None:
    """From now on."""

    def asked(source: int, data: bytes) -> bytes:
        try:
            question = decode_question(data)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            return encode_answer(Answer.refusing(ProtocolError(f"this is no question: {error}")))
        try:
            return encode_answer(Answer(facts=_answer(broker, source, question)))
        except AntiphonError as error:
            return encode_answer(Answer.refusing(error))
        except OSError as error:
            log.error("a question of client %d failed", source, exc_info=error)
            # Not one that says that nothing can be done: it may be over in a moment.
            failed = AntiphonError(f"the broker's disk failed: {error}; try again")
            return encode_answer(Answer.refusing(failed))

    node._on(KIND, asked, None, _log_failure, False, 1, _CAPACITY, "block")


def _answer(broker: Answering, source: int, question: Question) -> Any:
    match question:
        case Record(topic):
            return broker.record(source, topic)
        case Claim():
            return broker.claim(source, question)
        case Forget(name):
            return broker.forget(source, name)
        case Release(flow):
            return broker.release(source, flow)
        case Heard():
            return broker.heard(source, question)
        case Tell():
            return broker.durables(source)
        case Replay(name, limit):
            return broker.replay_dead(source, name, limit)


def _log_failure(kind: int, source: int, error: BaseException) -> None:
    log.error("a question of client %d failed", source, exc_info=error)
