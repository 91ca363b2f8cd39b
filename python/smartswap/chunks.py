"""Operators over lists of tensors, run over parts of the lists.

A fused or foreach operator needs all its tensors on the device at once, and so sets a floor under
the cap. Each of its results depends on the tensors of one place in the lists alone, so running it
part by part gives the same bits.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import pkgutil
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .deferred import DeferredUpdates, are_in_one_block, is_list, is_strided, lists_in, local_part
from .patches import Patches

__all__ = ["CAP_DIVISOR", "ChunkedOps", "split"]

# A part holds at most this part of the cap. `policy::part_bytes` plans for the same.
CAP_DIVISOR = 16

# Scalars of these come one a tensor, in a 1-D tensor.
_SCALARS_IN_TENSOR = frozenset({"_foreach_addcdiv", "_foreach_addcmul"})
# Functions of torch.optim that update lists of tensors.
_UPDATES = ("_multi_tensor_", "_fused_", "_single_tensor_")
_inside = threading.local()


def _sizes_bytes(values: Sequence[Any]) -> list[int]:
    return [_size_bytes(value) for value in values]


def _size_bytes(value: Any) -> int:
    value = local_part(value)
    if not isinstance(value, torch.Tensor):
        return 0
    if value.layout is torch.strided:
        return value.nbytes
    # What is sparse has no size of its own, and this one asks for no copy of it.
    if value.layout is torch.sparse_coo:
        return value._indices().nbytes + value._values().nbytes
    return value.values().nbytes


def split(
    lists: Sequence[Sequence[Any]], limit_bytes: int, most_bytes: int = 0
) -> list[tuple[int, int]]:
    """Ranges of places whose tensors hold at most `limit_bytes` together, at least one each.

    They end at seams where they can, so that updates of tensors that share memory wait together:
    the gradients of a layer lie side by side in one block under FSDP, as those of a bucket do under
    DDP. To get to a seam a range may hold up to `most_bytes`.
    """
    sizes = [sum(place) for place in zip(*map(_sizes_bytes, lists), strict=True)]
    before_bytes = [0, *itertools.accumulate(sizes)]
    if before_bytes[-1] <= limit_bytes:
        return [(0, len(sizes))]
    ranges, start, seam = [], 0, 0
    for place, is_seam in enumerate(_seams(lists)):
        seam = place if is_seam else seam
        while (size_bytes := before_bytes[place + 1] - before_bytes[start]) > limit_bytes:
            if seam > start:
                end = seam
            elif size_bytes > most_bytes and place > start:
                end = place
            else:
                break
            ranges.append((start, end))
            start = end
    ranges.append((start, len(sizes)))
    return ranges


def _seams(lists: Sequence[Sequence[Any]]) -> list[bool]:
    """By place, whether no tensor of it is a part of the same block as the one before it."""
    seams = [True] * len(lists[0])
    for values in lists:
        tensors = [local_part(value) for value in values if is_strided(value)]
        # Of two in one block one does not begin it.
        if len(tensors) < len(seams) or not any(one.storage_offset() for one in tensors):
            continue
        for place, pair in enumerate(itertools.pairwise(tensors), 1):
            seams[place] = seams[place] and not are_in_one_block(*pair)
    return seams


def _first_list(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any] | None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return value
    return None


def _has_mixed_default_eps(tensors: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a value that the first dtype decides would hold for tensors of other dtypes too."""
    takes_first = "eps1" in kwargs and kwargs["eps1"] is None
    return takes_first and len({tensor.dtype for tensor in tensors}) > 1


def _run_part(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    length: int,
    part: slice,
) -> Any:
    """Runs over one part, and puts back what the function placed into its lists."""
    taken = []

    def take(value: Any) -> Any:
        if not is_list(value, length):
            return value
        piece = value[part]
        if isinstance(value, list):
            taken.append((value, piece))
        return piece

    part_args = [take(value) for value in args]
    part_kwargs = {name: take(value) for name, value in kwargs.items()}
    result = function(*part_args, **part_kwargs)
    for whole, piece in taken:
        whole[part] = piece
    return result


class ChunkedOps:
    """Replaces the operators over lists of tensors in PyTorch by ones that run part by part.

    `install` and `remove` are each other's inverse. `limit_bytes` is the size of a part. What
    optimizers update waits if `updates` says so.
    """

    def __init__(self, limit_bytes: int, updates: DeferredUpdates | None = None) -> None:
        self.limit_bytes = max(1, limit_bytes)
        self.updates = updates
        self.parts_run = 0
        self._patches = Patches()

    def install(self) -> None:
        """Replaces them all. Does nothing if that is done already."""
        if self._patches:
            return
        for module in _optimizer_modules():
            for name, function in list(vars(module).items()):
                if name.startswith(_UPDATES) and inspect.isfunction(function):
                    self._patches.replace(module, name, self._chunk_optimizer(function))
        for name in dir(torch):
            if name.startswith("_foreach_"):
                self._patches.replace(torch, name, self._chunk_foreach(name, getattr(torch, name)))
        name = "_amp_foreach_non_finite_check_and_unscale_"
        self._patches.replace(torch, name, self._chunk_foreach(name, getattr(torch, name)))

    def remove(self) -> None:
        """Puts back what `install` replaced."""
        self._patches.restore()

    def _parts(self, lists: Sequence[Sequence[Any]]) -> list[tuple[int, int]]:
        parts = split(lists, self.limit_bytes)
        return parts if len(parts) > 1 else []

    def _chunk_optimizer(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            tensors = _first_list(args, kwargs)
            if tensors is None or _has_mixed_default_eps(tensors, kwargs):
                return function(*args, **kwargs)
            length = len(tensors)
            lists = lists_in(args, kwargs, length)
            updates = self.updates
            if updates is None:
                return self._run_parts(function, args, kwargs, lists)
            if updates.takes(function, lists, kwargs):
                slices = split(lists, updates.slice_bytes, self.limit_bytes)
                return updates.put_off(function, args, kwargs, length, slices)
            with updates.watching(function, lists):
                return self._run_parts(function, args, kwargs, lists)

        # TorchScript compiles the function itself, as for `torch.distributed.optim`.
        run.__prepare_scriptable__ = lambda: function
        return run

    def _run_parts(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        lists: Sequence[Sequence[Any]],
    ) -> None:
        parts = self._parts(lists)
        if not parts:
            function(*args, **kwargs)
        for start, end in parts:
            # Inside, the lists are short enough already.
            _inside.part = True
            try:
                _run_part(function, args, kwargs, len(lists[0]), slice(start, end))
            finally:
                _inside.part = False
            self.parts_run += 1

    def _waits_behind(
        self,
        run: Callable[..., Any],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        length: int,
    ) -> bool:
        """Whether a call of `function` waits behind the updates that its tensors wait for. Where
        they wait for none, it is done by `run`."""
        updates = self.updates
        ranges = [] if updates is None else updates.behind(args, kwargs, length)
        if not ranges:
            return False
        waiting = [places for places, waits in ranges if waits]
        updates.put_off(function, args, kwargs, length, waiting, is_behind=True)
        for (start, end), waits in ranges:
            if not waits:
                _run_part(run, args, kwargs, length, slice(start, end))
        return True

    def _chunk_foreach(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        in_place, is_of_amp = name.endswith("_"), name.startswith("_amp")
        has_scalars = name.rstrip("_") in _SCALARS_IN_TENSOR

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            tensors = None if getattr(_inside, "part", False) else _first_list(args, kwargs)
            if tensors is None:
                return function(*args, **kwargs)
            length = len(tensors)
            if has_scalars:
                args, kwargs = _spread_scalars(args, kwargs)
            # Such a function writes into its first list alone.
            writes_first = in_place and not is_of_amp
            if writes_first and self._waits_behind(run, function, args, kwargs, length):
                return tensors
            parts = self._parts(lists_in(args, kwargs, length))
            if not parts:
                return function(*args, **kwargs)
            results: list[Any] = []
            for start, end in parts:
                result = _run_part(function, args, kwargs, length, slice(start, end))
                if not in_place:
                    results.extend(result)
                self.parts_run += 1
            if not in_place:
                return tuple(results)
            return None if is_of_amp else tensors

        return run


def _spread_scalars(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with scalars as a list where they came in a tensor."""

    def spread(value: Any) -> Any:
        is_vector = isinstance(value, torch.Tensor) and value.dim() == 1 and value.is_cpu
        return value.tolist() if is_vector else value

    return tuple(map(spread, args)), {name: spread(value) for name, value in kwargs.items()}


def _optimizer_modules() -> list[Any]:
    """The modules of torch.optim, by import: the package hides some behind classes."""
    package = importlib.import_module("torch.optim")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return [
        importlib.import_module(f"torch.optim.{name}") for name in names if name != "_multi_tensor"
    ]
