"""Every error that Antiphon raises, in one tree.

::

    AntiphonError
    ├── ConfigError            a setting, an argument or a declaration is wrong
    ├── UnknownPeer            no address is known for this node id
    ├── PeerUnreachable        no connection, or it was lost            (ConnectionError)
    ├── AuthenticationFailed   the proof of the secret did not hold
    ├── DuplicateNode          two live nodes share one id
    ├── ProtocolError          the peer does not speak this protocol
    ├── SendTimeout            no room for the message in time          (TimeoutError)
    ├── RequestTimeout         no answer in time                        (TimeoutError)
    ├── ReceiveTimeout         nothing came in time                     (TimeoutError)
    ├── RequestCancelled       the caller gave the request up
    ├── RemoteError            the other side's handler failed
    ├── MessageTooLarge        above ``max_message_bytes``
    ├── UnknownKind            the receiver has no registration for it
    ├── QueueFull              a bounded queue was not to be waited for
    ├── Closed                 the object was closed, or is closing
    ├── WouldBlock             waiting is forbidden on this thread      (RuntimeError)
    ├── FilterError            a ``where`` expression does not hold together
    ├── PermissionDenied       the broker does not allow it
    ├── StoreFull              a broker's disk or quota is used up
    └── NotPrimary             this side of a partition may not write

The text is for people, in the order *what, where, do this*; programs read the facts. A fact is an
annotated attribute of its class, given as a keyword, and a keyword that is not a declared fact is
refused: a misspelt fact would otherwise surface years later, in somebody's error handler.

An operation over several peers tries all of them and raises one error, of the first failure's
class, whose ``failed`` maps each node id to its own error. That is why every class carries it.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, ClassVar

__all__ = [
    "AntiphonError",
    "AuthenticationFailed",
    "Closed",
    "ConfigError",
    "DuplicateNode",
    "FilterError",
    "MessageTooLarge",
    "NotPrimary",
    "PeerUnreachable",
    "PermissionDenied",
    "ProtocolError",
    "QueueFull",
    "ReceiveTimeout",
    "RemoteError",
    "RequestCancelled",
    "RequestTimeout",
    "SendTimeout",
    "StoreFull",
    "UnknownKind",
    "UnknownPeer",
    "WouldBlock",
]


class AntiphonError(Exception):
    """Root of the tree: catch it to catch whatever this library raises on purpose.

    Errors can be pickled, since they travel from worker processes to the one that reports them.
    """

    _facts: ClassVar[frozenset[str]] = frozenset({"failed"})

    failed: dict[int, AntiphonError]
    """For an operation over several peers: the error of each that failed. Empty otherwise."""

    def __init__(self, text: str = "", **facts: Any) -> None:
        super().__init__(text)
        self.failed = {}
        for name, value in facts.items():
            if name not in self._facts:
                known = ", ".join(sorted(self._facts))
                raise TypeError(f"{type(self).__name__} has no fact {name!r}; it has {known}")
            setattr(self, name, value)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {name for name in inspect.get_annotations(cls) if not name.startswith("_")}
        cls._facts = cls._facts | own

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError's own version rebuilds from errno and file name, and would lose the facts.
        return type(self), self.args, self.__dict__.copy()

    def __repr__(self) -> str:
        given = [
            f"{name}={value!r}"
            for name, value in sorted(vars(self).items())
            if name in self._facts and (name != "failed" or value)
        ]
        return f"{type(self).__name__}({', '.join([repr(str(self)), *given])})"


class ConfigError(AntiphonError):
    """A setting, an argument or a class declaration is wrong; nothing was changed."""

    setting: str | None = None
    value: object = None


class UnknownPeer(AntiphonError):
    """No address is known for the node: name it in ``peers``, or call ``add_peer`` first."""

    peer: int | None = None


class PeerUnreachable(AntiphonError, ConnectionError):
    """The peer could not be reached, or was lost while the caller waited for it."""

    peer: int | None = None
    address: str | None = None
    reason: str | None = None


class AuthenticationFailed(AntiphonError):
    """One side could not prove that it holds the secret.

    Not a `PeerUnreachable`: callers retry those, and a wrong secret does not mend by itself.
    """

    peer: int | None = None
    address: str | None = None
    reason: str | None = None


class DuplicateNode(AntiphonError):
    """Another living node answers to the same id: ``address`` is ours, ``other`` is theirs."""

    id: int | None = None
    address: str | None = None
    other: str | None = None


class ProtocolError(AntiphonError):
    """The peer sent something that this protocol does not contain, or a version we cannot speak."""

    peer: int | None = None


class SendTimeout(AntiphonError, TimeoutError):
    """The receiver left no room in time. ``sent`` messages of a series had gone out before."""

    peer: int | None = None
    kind: int | None = None
    waited: float = 0.0
    sent: int = 0


class RequestTimeout(AntiphonError, TimeoutError):
    """No answer came in time. The peer may have done the work all the same."""

    peer: int | None = None
    kind: int | None = None
    waited: float = 0.0


class ReceiveTimeout(AntiphonError, TimeoutError):
    """Nothing came in within the time given to ``receive``."""

    waited: float = 0.0


class RequestCancelled(AntiphonError):
    """The request's future was cancelled before an answer came."""

    peer: int | None = None
    kind: int | None = None


class RemoteError(AntiphonError):
    """The peer's handler raised, or cannot answer. ``exception`` is the name of its class there."""

    peer: int | None = None
    kind: int | None = None
    exception: str | None = None


class MessageTooLarge(AntiphonError):
    """The message is above ``max_message_bytes``, here or at the receiver."""

    size: int = 0
    limit: int = 0


class UnknownKind(AntiphonError):
    """Nobody at the peer has registered for this kind."""

    kind: int | None = None
    peer: int | None = None


class QueueFull(AntiphonError):
    """A bounded queue has no room, and the caller had asked not to wait."""

    capacity: int = 0
    pending: int = 0


class Closed(AntiphonError):
    """The object named by ``what`` is closed; whoever waited on it is woken by this error."""

    what: str | None = None


class WouldBlock(AntiphonError, RuntimeError):
    """Waiting here would stop an event loop or a handler; ``twin`` names what to call instead.

    Nothing was done, but for the first ``sent`` of a series of events, which went to all.
    """

    twin: str | None = None
    sent: int = 0


class FilterError(AntiphonError):
    """A ``where`` expression cannot be used; ``column`` counts from 1."""

    column: int | None = None
    expected: str | None = None


class PermissionDenied(AntiphonError):
    """The broker's rules do not allow ``client`` this ``action`` on this ``topic``.

    ``action`` is publish, subscribe, record, admin, or connect for a client that is not let in.
    """

    client: str | None = None
    action: str | None = None
    topic: str | None = None
    reason: str | None = None


class StoreFull(AntiphonError):
    """A recorded topic cannot grow: the disk or its ``limit`` in bytes is used up."""

    path: str | None = None
    limit: int | None = None


class NotPrimary(AntiphonError):
    """The group is partitioned and this side is not the primary one, so it must not write."""

    group: str | None = None
    members: int | None = None


def together(failed: dict[int, AntiphonError]) -> AntiphonError:
    """One error over those of several peers: of the first one's class and facts, and a copy of it,
    since an error that is among its own ``failed`` could not be printed or walked through."""
    first = next(iter(failed.values()))
    one = copy.copy(first)
    if len(failed) > 1:
        nodes = ", ".join(str(peer) for peer in failed)
        one.args = (f"{first} (of several that failed: nodes {nodes}; see .failed)",)
    one.failed = failed
    return one
