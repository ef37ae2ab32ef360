"""What comes back to a request: bytes as they are, or a message of the class that was wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.errors import RemoteError
from antiphon.wire.message import Message, decoder_for, kind_of

__all__ = ["answer_converter"]

_NONE = 1
"""As the core says it: the handler returned None."""


def answer_converter(
    target: int, kind: int, reply: type[Message] | None
) -> Callable[[int, bytes], Any] | None:
    """None where the bytes are wanted as they are."""
    if reply is None:
        return None
    wanted, decode = kind_of(reply), decoder_for(reply)

    def convert(answered: int, data: bytes) -> Message:
        if answered == wanted:
            try:
                return decode(data)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                text = f"an answer that is no {reply.__name__}: {error}"
        elif answered == _NONE:
            text = "None"
        else:
            text = "bytes" if answered == 0 else f"a message of kind {answered}"
        raise RemoteError(
            f"node {target} answered a request of kind {kind} with {text}, where a "
            f"{reply.__name__} was wanted; let its handler return one",
            peer=target,
            kind=kind,
        )

    return convert
