"""Lending the whole device to somebody else: all leaves, and comes back where it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import engine

__all__ = ["resume", "suspend", "suspended"]


def suspend() -> int:
    """Sends all tensors to host memory and gives their device memory back to the driver.

    Returns the bytes that stay: tensors smaller than the least that moves, and what is shared with
    NumPy, DLPack or another process (`stats()["held"]`). Tensors keep their addresses, but who took
    one with `data_ptr()` may not use it meanwhile; operators may, and what they use comes back.
    Call it between steps, while no other thread runs operators.

    Raises RuntimeError, before anything leaves, if the host has no room for all of it.
    """
    return engine.open_adapter().suspend()


def resume() -> None:
    """Begins to bring back what `suspend` sent away: first what the next step needs first.

    What does not fit any more comes back when it is used. Does nothing if nothing is away.
    """
    engine.open_adapter().resume()


@contextmanager
def suspended() -> Iterator[int]:
    """`with smartswap.suspended():` is `suspend()` before and `resume()` after."""
    held_bytes = suspend()
    try:
        yield held_bytes
    finally:
        if engine.is_enabled():
            resume()
