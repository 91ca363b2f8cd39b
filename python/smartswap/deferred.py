"""Optimizer updates that wait until somebody uses a tensor of theirs.

An optimizer steps when nothing else computes: what it needs comes and goes beside an idle device.
An update that waits runs just before the first operator that uses one of its tensors, most often in
the next forward pass, layer by layer, while the state of the next layer comes back. Who looks at a
weight, a gradient or the state sooner (clipping, an average of the weights, a checkpoint, an
evaluation) has it run then, so nobody can tell the difference but by the clock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["MODES", "DeferredUpdates", "Trial", "is_list"]

MODES = ("auto", "on", "off")

# Updates wait in slices of at least so much of the cap: small tensors share one.
_CAP_DIVISOR = 256
# Subclasses may be views of something else, whose use nobody could tell.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
# Below this share of a step, what an optimizer's operators wait for is not worth a search.
_WAIT_SHARE_LEAST = 0.08
# A step must become shorter by this share at least.
_GAIN_SHARE_LEAST = 0.02
# So many Stable steps are measured on either side.
_STEPS = 4


def _is_plain(tensors: Sequence[Any]) -> bool:
    return _PLAIN.issuperset(map(type, tensors))


class DeferredUpdates:
    """Lets the functions of torch.optim that update lists of tensors wait, slice by slice."""

    def __init__(self, adapter: Any, limit_bytes: int, is_on: bool) -> None:
        self.is_on = is_on
        # Slices that waited so far.
        self.n_deferred = 0
        self.slice_bytes = max(1, limit_bytes // _CAP_DIVISOR)
        self._adapter = adapter
        # Whether a function leaves its lists as they are: found out at its first call.
        self._keeps_lists: dict[Callable[..., Any], bool] = {}

    def takes(
        self,
        function: Callable[..., Any],
        lists: Sequence[Sequence[Any]],
        kwargs: dict[str, Any],
    ) -> bool:
        """Whether a call may wait: it only writes into tensors that it is given."""
        return (
            self.is_on
            and self._keeps_lists.get(function, False)
            and not kwargs.get("differentiable")
            and all(map(_is_plain, lists))
        )

    @contextmanager
    def watching(
        self, function: Callable[..., Any], lists: Sequence[Sequence[Any]]
    ) -> Iterator[None]:
        """In here, `function` runs with these lists."""
        before = [tuple(map(id, values)) for values in lists]
        # Where a place is empty, as of momentum that is to be made, the next call tells.
        tells = all(map(_is_plain, lists))
        yield
        kept = all(tuple(map(id, one)) == was for one, was in zip(lists, before, strict=True))
        if tells:
            # One that places tensors into its lists would do so too late.
            self._keeps_lists[function] = self._keeps_lists.get(function, True) and kept

    def put_off(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        length: int,
        ranges: Sequence[tuple[int, int]],
    ) -> None:
        """Lets the call wait, the places of each range by themselves.

        Tensors are taken as they are now, so whoever gives a parameter other data, or an entry of
        the state another tensor, changes nothing of it; scalars in tensors are copied.
        """
        args = [_kept(value, length) for value in args]
        kwargs = {name: _kept(value, length) for name, value in kwargs.items()}
        lists = [value for value in (*args, *kwargs.values()) if is_list(value, length)]
        for start, end in ranges:
            used = [tensor for values in lists for tensor in values[start:end]]
            cut = functools.partial(_cut, length=length, places=slice(start, end))
            own_kwargs = {name: cut(value) for name, value in kwargs.items()}
            self._adapter.put_off(used, functools.partial(function, *map(cut, args), **own_kwargs))
            self.n_deferred += 1

    def run_all(self) -> None:
        """Runs what waits."""
        self._adapter.run_put_off()


def is_list(value: Any, length: int) -> bool:
    """Whether a value is a list or tuple with one entry a tensor."""
    return isinstance(value, (list, tuple)) and len(value) == length


def _kept(value: Any, length: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [one.detach() for one in value] if is_list(value, length) else value


def _cut(value: Any, length: int, places: slice) -> Any:
    return value[places] if is_list(value, length) else value


class Trial:
    """Finds out whether a training is faster if updates wait, and lets them wait if so.

    It begins once the steps are Stable under a plan by which the optimizer's operators wait for
    copies, and compares the steps of then with those that are Stable after it.
    """

    def __init__(self, updates: DeferredUpdates) -> None:
        self.outcome = ""
        self._updates = updates
        self._step_us_before = 0.0
        self._stable_before = 0

    def consider(self, n_stable: int, explain: Callable[[], dict[str, Any]]) -> bool:
        """Call it after each step, with the number of Stable ones. Whether it is decided."""
        if n_stable < self._stable_before + _STEPS:
            return False
        explained = explain()
        measured, predicted = explained["measured"], explained["prediction"]
        if measured is None or predicted is None:
            return not self._updates.is_on
        step_us = measured["step_us"]
        if not self._updates.is_on:
            waits_us = sum(
                wait["wait_us"] for wait in predicted["waits"] if _is_of_optimizer(wait["op"])
            )
            if waits_us < _WAIT_SHARE_LEAST * predicted["step_us"]:
                return True
            self._updates.is_on = True
            self._step_us_before, self._stable_before = step_us, n_stable
            return False
        before_us = self._step_us_before
        is_faster = step_us <= (1 - _GAIN_SHARE_LEAST) * before_us
        self._updates.is_on = is_faster
        self.outcome = (
            f"updates of the optimizer {'wait for their use' if is_faster else 'do not wait'}: "
            f"{step_us / 1e3:.1f} ms a step if they do, {before_us / 1e3:.1f} ms if not"
        )
        return True


def _is_of_optimizer(name: str) -> bool:
    return "::_fused_" in name or "::_foreach_" in name
