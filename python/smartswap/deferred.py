"""Optimizer updates that wait until somebody uses a tensor of theirs.

An optimizer steps when nothing else computes: what it needs comes and goes beside an idle device.
An update that waits runs just before the first operator that uses one of its tensors, most often in
the next forward pass, layer by layer, while the state of the next layer comes back. Who looks at a
weight, a gradient or the state sooner (clipping, a checkpoint, an evaluation) has it run then, so
nobody can tell the difference but by the clock. What reads a weight and only writes to memory of
its own, such as an average of the weights, waits behind the update.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

__all__ = [
    "MODES", "DeferredUpdates", "Told", "Trial", "are_in_one_block", "are_plain", "is_list",
    "is_strided", "lists_in", "local_part",
]

MODES = ("auto", "on", "off")

# Updates wait in slices of at least so much of the cap: small tensors share one.
_CAP_DIVISOR = 256
# Subclasses may be views of something else, whose use nobody could tell.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
# Optimizers whose arithmetic is each element's own: what they do to a tensor in shards they do to
# each shard, and no rank needs another for it.
_ELEMENTWISE = frozenset(
    f"_{kind}_{name}"
    for kind in ("fused", "multi_tensor", "single_tensor")
    for name in (
        "adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop",
        "rprop", "sgd",
    )
)
# So much of a step a plan has to promise, and so optimizers have to wait for so much: a trial takes
# some twenty steps, most of them slow.
_PROMISE_SHARE_LEAST = 0.05
# A step must become shorter by this share at least.
_GAIN_SHARE_LEAST = 0.02
# So many Stable steps are measured on either side.
_STEPS = 4


def are_plain(tensors: Sequence[Any]) -> bool:
    """Whether all are tensors of PyTorch's own types, each with memory of its own."""
    return _PLAIN.issuperset(map(type, tensors))


def local_part(tensor: Any) -> Any:
    """What this rank holds of a tensor in shards; any other one as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def are_in_one_block(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two strided tensors are parts of the same block."""
    # Not by address: whoever asks for one is taken to use it.
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def is_strided(value: Any) -> bool:
    """Whether a value is a tensor of one block, so neither sparse nor a number."""
    value = local_part(value)
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _are_local(function: Callable[..., Any], lists: Sequence[Sequence[Any]]) -> bool:
    """Whether a function of these lists works on this rank's own memory alone."""
    others = [values for values in lists if not are_plain(values)]
    if not others:
        return True
    return function.__name__ in _ELEMENTWISE and all(map(_are_shards, zip(*others, strict=True)))


def _are_strided(values: Sequence[Any]) -> bool:
    """Whether none is sparse: the memory of such a gradient is another one after each backward."""
    return all(is_strided(one) for one in values if isinstance(one, torch.Tensor))


def _are_shards(tensors: Sequence[Any]) -> bool:
    """Whether tensors are cut into shards alike."""
    cuts = [
        (tensor.device_mesh, tensor.placements) if hasattr(tensor, "_local_tensor") else None
        for tensor in tensors
    ]
    first = cuts[0]
    return (
        first is not None
        and all(cut == first for cut in cuts)
        and not any(placement.is_partial() for placement in first[1])
        and are_plain([local_part(tensor) for tensor in tensors])
    )


def _are_alike(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an operator may go through tensors element by element."""
    first = tensors[0]
    return all(
        one.shape == first.shape and one.dtype == first.dtype and one.device == first.device
        for one in tensors
    )


def _is_recorded(values: Sequence[Any]) -> bool:
    """Whether autograd records what is done with values, or refuses it."""
    if not torch.is_grad_enabled():
        return False
    lists = (value if isinstance(value, (list, tuple)) else (value,) for value in values)
    tensors = filter(torch.is_tensor, itertools.chain.from_iterable(lists))
    return any(tensor.requires_grad for tensor in tensors)


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
            # What a graph captures is what it does at each replay.
            and not self._adapter.captures()
            and self._keeps_lists.get(function, False)
            and not kwargs.get("differentiable")
            and _are_local(function, lists)
            and all(map(_are_strided, lists))
        )

    @contextmanager
    def watching(
        self, function: Callable[..., Any], lists: Sequence[Sequence[Any]]
    ) -> Iterator[None]:
        """In here, `function` runs with these lists."""
        before = [tuple(map(id, values)) for values in lists]
        # Where a place is empty, as of momentum that is to be made, the next call tells.
        tells = _are_local(function, lists)
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
        *,
        is_behind: bool = False,
    ) -> None:
        """Lets the call wait, the places of each range by themselves.

        Tensors are taken as they are now, so whoever gives a parameter other data, or an entry of
        the state another tensor, changes nothing of it; scalars in tensors are copied.

        is_behind: whether what waits for the same tensors goes on waiting, and runs right before
        this call. Else it runs now. A range that shares a block with the one before is behind it.
        """
        args = [_kept(value, length) for value in args]
        kwargs = {name: _kept(value, length) for name, value in kwargs.items()}
        lists = lists_in(args, kwargs, length)
        for start, end in ranges:
            used = [tensor for values in lists for tensor in values[start:end]]
            cut = functools.partial(_cut, length=length, places=slice(start, end))
            own_kwargs = {name: cut(value) for name, value in kwargs.items()}
            run = functools.partial(function, *map(cut, args), **own_kwargs)
            is_cut = start > 0 and any(
                are_in_one_block(values[start - 1], values[start])
                for values in lists
                if is_strided(values[start - 1]) and is_strided(values[start])
            )
            self._adapter.put_off(used, run, is_behind or is_cut)
            self.n_deferred += 1

    def behind(
        self, args: Sequence[Any], kwargs: dict[str, Any], length: int
    ) -> list[tuple[tuple[int, int], bool]]:
        """The places of the lists of a call in ranges that wait for the same update or for none,
        and whether they wait. Empty if nothing waits, or if a function that only writes into its
        first list may not do so later."""
        if not self.is_on or self._adapter.n_put_off() == 0 or self._adapter.captures():
            return []
        lists = lists_in(args, kwargs, length)
        may_wait = (
            all(map(are_plain, lists))
            and not _is_recorded((*args, *kwargs.values()))
            # What is wrong with the lists is said now.
            and all(map(_are_alike, zip(*lists, strict=True)))
        )
        if not may_wait:
            return []
        numbers = [
            max(map(self._adapter.put_off_number, place)) for place in zip(*lists, strict=True)
        ]
        if not any(numbers):
            return []
        ranges, start = [], 0
        for number, same in itertools.groupby(numbers):
            end = start + len(list(same))
            ranges.append(((start, end), number > 0))
            start = end
        return ranges

    def run_all(self) -> None:
        """Runs what waits."""
        self._adapter.run_put_off()


def is_list(value: Any, length: int) -> bool:
    """Whether a value is a list or tuple with one entry a tensor."""
    return isinstance(value, (list, tuple)) and len(value) == length


def lists_in(
    args: Sequence[Any], kwargs: dict[str, Any], length: int
) -> list[Sequence[Any]]:
    """What a call is given that has one entry a tensor."""
    return [value for value in (*args, *kwargs.values()) if is_list(value, length)]


def _kept(value: Any, length: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [local_part(one).detach() for one in value] if is_list(value, length) else value


def _cut(value: Any, length: int, places: slice) -> Any:
    return value[places] if is_list(value, length) else value


class Told(NamedTuple):
    """What a rank knows that decides about a trial. Ranks take the largest of each number."""

    # 1 if it does not know enough yet.
    lacks: float = 1.0
    # The part of a step that the optimizer's operators wait for copies.
    waits_share: float = 0.0
    step_us: float = 0.0
    # What it is planned to take if updates wait, of what it is if not. 0 if nobody can tell.
    planned_ratio: float = 0.0


class Trial:
    """Finds out whether a training is faster if updates wait, and lets them wait if so.

    Once the steps are Stable under a plan by which the optimizer's operators wait for copies, it
    has the step planned as it would be. If that promises enough, updates wait, and the steps of
    then are compared with those that are Stable after it.

    count_stable: how many steps were Stable so far, but for those that went by the plan of steps
    unlike them: the first ones after a change may. explain: as `smartswap.explain`. plan: what the
    step is planned to take, as the engine's `deferral` tells.
    """

    def __init__(
        self,
        updates: DeferredUpdates,
        count_stable: Callable[[], int],
        explain: Callable[[], dict[str, Any]],
        plan: Callable[[], dict[str, float] | None],
    ) -> None:
        self.outcome = ""
        self.is_over = False
        self._updates = updates
        self._count_stable = count_stable
        self._explain = explain
        self._plan = plan
        self._step_us_before = 0.0
        self._stable_before = 0
        # What it tells until something is decided.
        self._told: Told | None = None

    def tell(self) -> Told:
        """What this rank knows. Call it after each step."""
        if self.is_over or self._count_stable() < self._stable_before + _STEPS:
            return Told()
        if self._told is None:
            told = _told_by(self._explain())
            # Where nothing moves there is nothing to try; a trial waits for measured steps.
            if told is None and self._updates.is_on:
                return Told()
            self._told = self._with_plan(told or Told(lacks=0.0))
        return self._told

    def _with_plan(self, told: Told) -> Told:
        """The same, with what is planned if that is asked for."""
        if self._updates.is_on or told.waits_share < _PROMISE_SHARE_LEAST:
            return told
        planned = self._plan()
        if planned is None:
            return told
        return told._replace(planned_ratio=planned["deferred_us"] / planned["recorded_us"])

    def hear(self, told: Told) -> None:
        """Decides by what the rank that knows the least, waits the longest or is the slowest
        told. Ranks call it with the same numbers after the same step."""
        if self.is_over or told.lacks:
            return
        self._told = None
        if not self._updates.is_on:
            promises = told.planned_ratio <= 1 - _PROMISE_SHARE_LEAST
            self.is_over = told.waits_share < _PROMISE_SHARE_LEAST or not promises
            if not promises:
                self.outcome = (
                    "updates of the optimizer do not wait: as planned a step would take "
                    f"{told.planned_ratio:.2f} times as long if they did"
                )
            self._updates.is_on = not self.is_over
            self._step_us_before, self._stable_before = told.step_us, self._count_stable()
            return
        before_us = self._step_us_before
        is_faster = told.step_us <= (1 - _GAIN_SHARE_LEAST) * before_us
        self._updates.is_on = is_faster
        self.is_over = True
        self.outcome = (
            f"updates of the optimizer {'wait for their use' if is_faster else 'do not wait'}: "
            f"{told.step_us / 1e3:.1f} ms a step if they do, {before_us / 1e3:.1f} ms if not"
        )


def _told_by(explained: dict[str, Any]) -> Told | None:
    measured, predicted = explained["measured"], explained["prediction"]
    if measured is None or predicted is None:
        return None
    waits = (wait["wait_us"] for wait in predicted["waits"] if _is_of_optimizer(wait["op"]))
    return Told(0.0, sum(waits) / predicted["step_us"], measured["step_us"])


def _is_of_optimizer(name: str) -> bool:
    return "::_fused_" in name or "::_foreach_" in name
