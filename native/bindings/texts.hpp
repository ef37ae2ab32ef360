// Docstrings of the calls that come straight from the interpreter. The first line of each is the signature
// that inspect and help() show; the interpreter cuts it off.
#pragma once

namespace antiphon::python {

inline constexpr char kSendText[] =
    R"(send($self, target, message, *, kind=None)
--

Sends a message to a node: a Message, or with ``kind=`` any buffer of bytes.

``target`` is a node's id, or several: then all are tried, and one error is raised whose ``failed``
maps each id to its own. Returns when the message is in the outgoing ring, in order behind what this
thread has sent to that node before; it is delivered at most once. Use `flush`, or an answer, to know
more.

Blocks while there is no connection, no credit or no room: for at most ``connect_timeout`` and
``send_timeout``, inside a handler ``request_timeout``. Raises `SendTimeout` then; `UnknownPeer`,
`PeerUnreachable`, `AuthenticationFailed`, `DuplicateNode` or `ProtocolError` when there is no
connection to be had, or it is lost meanwhile; `MessageTooLarge`, `ConfigError` for a bad kind,
`Closed`; and where it would have to wait on a thread with a running event loop `WouldBlock`: use
`send_async`.)";

inline constexpr char kTrySendText[] =
    R"(try_send($self, target, message, *, kind=None)
--

`send` to one node without waiting: True when the message went, False when it would have to wait.

Never blocks. False means that there is no connection yet (this call starts one), no credit or no
room. Raises as `send`, but for what a wait ends with; and `MessageTooLarge` for a message that goes
only in fragments, which have to wait for each other.)";

inline constexpr char kSendManyText[] =
    R"(send_many($self, target, messages, *, kind=None)
--

Sends several messages to one node, in this order and in as few frames as hold them.

With ``kind=`` the messages are bytes or other buffers; without it they are Messages of one class.
Much faster than as many calls of `send`. Blocks and raises as `send` does; the time it may wait
begins anew with everything that the receiver takes. `SendTimeout.sent` says how many had gone out
before, and those are delivered.)";

inline constexpr char kSendPackedText[] =
    R"(send_packed($self, target, data, offsets, *, kind)
--

Sends the messages that lie in one buffer, without an object for each.

``offsets`` is a buffer of int32 or int64, one more than there are messages, as in Arrow: message i is
``data[offsets[i]:offsets[i + 1]]``. Neither buffer may change before it returns. Blocks and raises as
`send_many`; ValueError for offsets that do not fit the data.)";

inline constexpr char kReceiveText[] =
    R"(receive($self, timeout=None)
--

The next message, ``(source, data)``: bytes for a raw kind, the message for a typed one. A
subscription's gives an `Event`.

Each message goes to one caller, and counts as handled when this returns it. Blocks until one comes,
on the caller's own thread: for ever without a ``timeout``, and not at all with 0. Raises
`ReceiveTimeout` after ``timeout`` seconds, `Closed` when the inbox or its node is closed,
`msgspec.DecodeError` for bytes that are no such message (the next call gives the next one), and where
it would have to wait on a thread with a running event loop `WouldBlock`: use `receive_async`.)";

inline constexpr char kReceiveManyText[] =
    R"(receive_many($self, most, timeout=None)
--

A list of at least one and at most ``most`` messages, each as `receive` gives it.

Blocks and raises as `receive`, for the first one only: the others are those that are here already.
One that cannot be decoded is left for the next call to raise.)";

inline constexpr char kPublishText[] =
    R"(publish($self, data, properties=None, ttl=None)
--

Sends an event, a buffer or a Message, to every subscription known now that wants it.

``properties`` are what ``where=`` looks at: str, int, float or bool by name. After ``ttl`` seconds the
event is worth nothing any more, and is not handed out. Each subscription gets this publisher's events
in order, and at most once. Without subscriptions it does nothing; one that cannot be reached is no
error, but counted.

Blocks while a subscription that blocks has no room, for at most ``send_timeout``, inside a handler
``request_timeout``. Raises `SendTimeout` then (the others have got the event), `Closed`,
`MessageTooLarge`, `ConfigError` for bad properties, TypeError for data that is no buffer; and where it
would have to wait on a thread with a running event loop `WouldBlock`, before anybody has got the event:
use `publish_async`. Before the bus is started it raises `Closed`, unless the publisher retains.)";

inline constexpr char kPublishManyText[] =
    R"(publish_many($self, events, ttl=None)
--

Publishes several events, bytes or Messages, in this order and in few frames.

Much faster than one by one. Blocks and raises as `publish`. `WouldBlock.sent` says how many had gone to
all before: none, unless somebody filters by what the data holds.)";

inline constexpr char kPublishPackedText[] =
    R"(publish_packed($self, data, offsets, ttl=None)
--

Publishes the events that lie in one buffer, without an object for each.

``offsets`` are as with `Node.send_packed`: int32 or int64, one more than there are events. Blocks and
raises as `publish`; ValueError for offsets that do not fit the data. It publishes 8192 in one go:
`WouldBlock.sent` says how many had gone to all before.)";

}  // namespace antiphon::python
