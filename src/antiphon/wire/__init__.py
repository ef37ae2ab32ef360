"""What travels: kinds of messages and their codecs, bytes in and bytes out, no sockets.

Receives objects from `antiphon.node` and the layers above it and gives them back as bytes, and
the reverse. Frames themselves (header, packing, fragments, flows) are written and parsed by the
core, which never looks inside a message.
"""

from __future__ import annotations

from antiphon.wire.message import Message, decoder_for, encode, kind_of

__all__ = ["Message", "decoder_for", "encode", "kind_of"]
