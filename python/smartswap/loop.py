"""Finds the ends of training steps: from optimizers that step, or else from backward passes."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

__all__ = ["StepEnds"]

_log = logging.getLogger("smartswap")

# So often may others step until the one that ended the steps is thought to be done with.
_PATIENCE = 16
# After so many backward passes there is no optimizer to wait for: of those between which weights or
# gradients were changed, which adding up does not do; and of all, more than add up gradients.
_PASSES_BY_HAND = 8
_PASSES = 256
# A leaf of a graph is looked for among so many of its nodes.
_NODES = 1000


class StepEnds:
    """Calls `end_step` after the last optimizer of each iteration.

    The optimizer that stepped first ends the steps until another one steps after it; from then on
    that one does. When it no longer steps, the one that still does takes over. A step that
    GradScaler left out because of infinite gradients ends like any other. In a script that changes
    its weights by hand, or while gradients arrive, each backward pass comes to end a step.
    """

    def __init__(self, end_step: Callable[[], None]) -> None:
        self._end_step = end_step
        self._passes = _BackwardPasses(end_step)
        self._last: weakref.ref[Any] | None = None
        self._since_last = 0
        self._stepped: weakref.ref[Any] | None = None
        self._handles: list[Any] = []
        self._scaler_step: Callable[..., Any] | None = None
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        """Begins to listen. Does nothing if it does already."""
        if self._handles:
            return
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self._watch_scaler()
        self._passes.install()

    def remove(self) -> None:
        """Listens no more."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._passes.remove()
        torch.amp.GradScaler._maybe_opt_step = self._scaler_step
        self._last = self._stepped = self._scaler_step = None
        self._since_last = 0
        self._seen.clear()

    def note(self, optimizer: Any) -> None:
        """Takes down that `optimizer` stepped, and ends the training step if it is the last."""
        self._passes.remove()
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

    def _before_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        # A closure may run many backward passes before the step is done.
        self._passes.remove()

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


class _BackwardPasses:
    """Calls `end_step` after each backward pass, once many have run and no optimizer has stepped.

    They are seen where `Tensor.backward` leads. Nothing of PyTorch is changed once an optimizer
    has stepped.
    """

    def __init__(self, end_step: Callable[[], None]) -> None:
        self._end_step = end_step
        self._watched: Any = None
        self._depth = 0
        self._count = 0
        self._count_by_hand = 0
        self._leaf: tuple[weakref.ref[torch.Tensor], Any] | None = None
        self._has_told = False

    def install(self) -> None:
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def watched(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensors, Iterator):
                tensors = tuple(tensors)
            if self._depth == 0:
                self._count_by_hand += self._has_changed()
            leaf = _leaf_of(tensors)
            # A checkpoint runs passes within one, on a thread of PyTorch's.
            self._depth += 1
            try:
                result = backward(tensors, *args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0:
                self._leaf = None if leaf is None else (weakref.ref(leaf), _versions(leaf))
                self._note()
            return result

        self._watched = torch.autograd.backward = watched

    def remove(self) -> None:
        if self._watched is None:
            return
        # Whoever has wrapped it since goes on to call this one, which ends no more steps.
        if torch.autograd.backward is self._watched:
            torch.autograd.backward = self._watched.__wrapped__
        self._watched = None

    def _has_changed(self) -> bool:
        """Whether a weight of the last pass, or its gradient, was changed since."""
        leaf = self._leaf and self._leaf[0]()
        return leaf is not None and _versions(leaf) != self._leaf[1]

    def _note(self) -> None:
        if self._watched is None:
            # An optimizer has stepped, maybe within this pass.
            return
        self._count += 1
        if self._count_by_hand < _PASSES_BY_HAND and self._count < _PASSES:
            return
        if not self._has_told:
            self._has_told = True
            _log.warning(
                "no optimizer of torch.optim has stepped in %d backward passes: each ends a "
                "training step from now on; or call smartswap.step() where steps end",
                self._count,
            )
        self._end_step()


def _leaf_of(tensors: Any) -> torch.Tensor | None:
    """A tensor that a backward pass from `tensors` brings a gradient."""
    first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
    nodes = [first.grad_fn if isinstance(first, torch.Tensor) else first]
    for _ in range(_NODES):
        if not nodes:
            break
        node = nodes.pop()
        # By name: the node of a script's own function may have any attribute.
        if type(node).__name__ == "AccumulateGrad":
            return node.variable
        nodes += [after for after, _ in getattr(node, "next_functions", ()) if after is not None]
    return None


def _versions(leaf: torch.Tensor) -> list[int | None]:
    """Numbers of which one is another after each change of a tensor or its gradient in place."""
    return [
        None if tensor is None or tensor.is_inference() else tensor._version
        for tensor in (leaf, leaf.grad)
    ]
