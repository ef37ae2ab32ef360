"""What members say to each other about membership, as MessagePack between nodes.

One envelope names the group; the rest is the business of the layers. Data and its acknowledgements
do not come here: the core moves them.
"""

from __future__ import annotations

import msgspec

from antiphon.groups.view import Member, Record

__all__ = [
    "AreYouThere",
    "Control",
    "Dissolve",
    "Find",
    "Found",
    "GetView",
    "Gone",
    "Heartbeat",
    "IAm",
    "Join",
    "Leave",
    "PutOut",
    "Suspects",
    "ViewMessage",
    "decode",
    "encode",
    "sender_life",
]


class Find(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Who of this group is there? From one that may be joining itself."""

    joining: Member | None = None


class Found(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The answer: a member and its view, or one that is joining too."""

    member: Member
    coordinator: Member | None = None
    view: int = 0
    size: int = 0
    founded: int = 0
    primary: bool = True


class Join(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """To a coordinator: take me in, with a view whose id is above what I have seen."""

    member: Member
    above: int = 0


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """To a coordinator: I go, and so do those others who have said it to me."""

    life: int
    also: tuple[int, ...] = ()


class ViewMessage(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """From a coordinator, or from one that was asked: this is the view."""

    record: Record
    key: bytes = b""
    """For the view's datagrams, where they are sealed; only to its members."""


class GetView(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """To one that seems to know a later view: tell me."""

    life: int


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """I live, and this is the view that I know."""

    life: int
    view: int = 0
    founded: int = 0
    coordinator: int = 0
    busy: float = 0.0
    """Seconds that its application has been at one message."""


class AreYouThere(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """To one that is not heard: the last question before it is suspected."""

    life: int


class IAm(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The answer."""

    life: int


class Suspects(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """To whoever is to make the next view: these have not answered me."""

    life: int
    suspects: tuple[int, ...]


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """To one that believes to be a member: you are not, this is the view."""

    record: Record


class Dissolve(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """From a coordinator to its members: we join that one."""

    life: int
    to: Member


class PutOut(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """To whoever is to make the next view: make it without these, though they are there."""

    life: int
    members: tuple[int, ...]


Control = (
    Find
    | Found
    | Join
    | Leave
    | ViewMessage
    | GetView
    | Heartbeat
    | AreYouThere
    | IAm
    | Suspects
    | Gone
    | Dissolve
    | PutOut
)


def sender_life(message: Control) -> int | None:
    """The life in which its sender is, where it says so."""
    if isinstance(message, Find):
        return None if message.joining is None else message.joining.life
    if isinstance(message, Found | Join):
        return message.member.life
    if isinstance(message, Leave | GetView | Heartbeat | IAm | Suspects | Dissolve | PutOut):
        return message.life
    return None


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """The group, and what is said in it."""

    group: str
    message: Control


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(group: str, message: Control) -> bytes:
    """As it goes over the wire."""
    return _encoder.encode(Envelope(group, message))


def decode(data: bytes) -> tuple[str, Control]:
    """Raises msgspec.DecodeError or ValidationError for what is none."""
    envelope = _decoder.decode(data)
    return envelope.group, envelope.message
