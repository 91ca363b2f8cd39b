"""Finds the ends of training steps from the optimizers that step."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["StepEnds"]

# So often may others step until the one that ended the steps is thought to be done with.
_PATIENCE = 16


class StepEnds:
    """Calls `end_step` after the last optimizer of each iteration.

    The optimizer that stepped first ends the steps until another one steps after it; from then on
    that one does. When it no longer steps, the one that still does takes over. A step that
    GradScaler left out because of infinite gradients ends like any other.
    """

    def __init__(self, end_step: Callable[[], None]) -> None:
        self._end_step = end_step
        self._last: weakref.ref[Any] | None = None
        self._since_last = 0
        self._stepped: weakref.ref[Any] | None = None
        self._handle: Any = None
        self._scaler_step: Callable[..., Any] | None = None
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        """Begins to listen. Does nothing if it does already."""
        if self._handle is not None:
            return
        self._handle = register_optimizer_step_post_hook(self._after_step)
        self._watch_scaler()

    def remove(self) -> None:
        """Listens no more."""
        if self._handle is None:
            return
        self._handle.remove()
        self._handle = None
        torch.amp.GradScaler._maybe_opt_step = self._scaler_step
        self._last = self._stepped = self._scaler_step = None
        self._since_last = 0
        self._seen.clear()

    def note(self, optimizer: Any) -> None:
        """Takes down that `optimizer` stepped, and ends the training step if it is the last."""
        self._stepped = weakref.ref(optimizer)
        last = self._last() if self._last is not None else None
        if last is optimizer:
            self._since_last = 0
            self._end_step()
        elif self._is_new(optimizer) or last is None or self._since_last >= _PATIENCE:
            self._last = weakref.ref(optimizer)
            self._since_last = 0
            self._end_step()
        else:
            self._since_last += 1

    def _is_new(self, optimizer: Any) -> bool:
        """Whether `optimizer` steps for the first time; remembers it."""
        if optimizer in self._seen:
            return False
        self._seen.add(optimizer)
        return True

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.note(optimizer)

    def _watch_scaler(self) -> None:
        step = torch.amp.GradScaler._maybe_opt_step
        self._scaler_step = step

        @functools.wraps(step)
        def maybe_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._stepped = None
            result = step(scaler, optimizer, *args, **kwargs)
            if self._stepped is None:
                self.note(optimizer)
            return result

        torch.amp.GradScaler._maybe_opt_step = maybe_step
