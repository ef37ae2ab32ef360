"""Batches as Arrow arrays. Needs pyarrow, which nothing else here does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from antiphon._core import Batch

__all__ = ["binary_array"]


def binary_array(batch: Batch) -> Any:
    """``batch`` as a `pyarrow.BinaryArray` over the same memory."""
    try:
        import pyarrow
    except ImportError:
        raise ConfigError(
            "Batch.to_arrow() needs pyarrow; pip install 'antiphon[lab]' or pyarrow itself"
        ) from None
    buffers = [None, pyarrow.py_buffer(batch.offsets), pyarrow.py_buffer(batch.data)]
    return pyarrow.BinaryArray.from_buffers(pyarrow.binary(), len(batch), buffers)
