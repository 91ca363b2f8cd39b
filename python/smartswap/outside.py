"""Tensors beside the engine: for other processes, and for libraries that want memory of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import _native, engine, variables

__all__ = ["outside"]


@contextmanager
def outside() -> Iterator[None]:
    """Tensors that this thread makes in here are PyTorch's own allocator's, and never move.

    Other processes may share them, also on a GPU. What a pool takes (`torch.cuda.MemPool`, and
    through it NCCL's symmetric memory; graphs) is so anyway. On an accelerator they count towards
    the cap with all that PyTorch's allocator holds for them, and others leave for them; what it
    holds and no tensor uses goes back when a step ends. On the host, where the software device has
    memory of its own, they do not count.

    Operators use such tensors as all others. Gradients are made by threads of their own, so they
    are not outside. Without SmartSwap this does nothing.
    """
    # An engine that the variables ask for opens with the first tensor, perhaps in here.
    if not engine.is_enabled() and not variables.wishes():
        yield
        return
    adapter = _native.adapter()
    adapter.enter_outside()
    try:
        yield
    finally:
        adapter.leave_outside()
