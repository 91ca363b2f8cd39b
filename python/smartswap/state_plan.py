"""What state an optimizer will make for its parameters, and which of it goes to host memory."""

from __future__ import annotations

import inspect
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import LBFGS, SGD, Optimizer, SparseAdam

from .budget import choose
from .errors import UnsupportedOptimizerError

__all__ = ["StatePlan", "is_placeable", "local", "predict_sizes"]

_SCALAR_WAYS = ("foreach", "fused", "capturable", "differentiable")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a distributed tensor that this rank holds; other tensors as they are."""
    return getattr(tensor, "_local_tensor", tensor)


def is_placeable(param: torch.Tensor, key: str, value: Any) -> bool:
    """Whether an entry of a parameter's state is one that can lie in host memory."""
    if key == "step" or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    return value.dim() > 0 or param.dim() == 0


def predict_sizes(optimizer: Optimizer) -> list[int]:
    """Sizes in bytes of all the state that `optimizer` makes at its first step.

    A twin of the optimizer makes its state on the meta device, where tensors have no memory.
    Raises UnsupportedOptimizerError if that cannot be found out.
    """
    name = type(optimizer).__name__
    if isinstance(optimizer, (LBFGS, SparseAdam)):
        raise UnsupportedOptimizerError(
            f"virtual optimizer: {name} keeps no state of its parameters' sizes that could be "
            "placed; leave this optimizer out"
        )
    twin, params = _meta_twin(optimizer)
    failure = _make_state(twin)
    sizes = []
    for param in params:
        state = twin.state.get(param, {})
        sizes += [
            value.nbytes
            for key, value in state.items()
            if is_placeable(param, key, value) and value.is_meta
        ]
    if not sizes and failure is not None:
        raise UnsupportedOptimizerError(
            f"virtual optimizer: the state of {name} cannot be foreseen ({failure}); "
            "use an optimizer of torch.optim"
        ) from failure
    return sizes


def _meta_twin(optimizer: Optimizer) -> tuple[Optimizer, list[torch.Tensor]]:
    twin = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    # Schedulers and others put bound functions of the original here.
    for name in ("step", "_init_group"):
        twin.__dict__.pop(name, None)
    twin._optimizer_step_pre_hooks = OrderedDict()
    twin._optimizer_step_post_hooks = OrderedDict()
    twin.state = defaultdict(dict)
    params: list[torch.Tensor] = []
    twin.param_groups = []
    for group in optimizer.param_groups:
        metas = []
        for param in (param for param in group["params"] if param.requires_grad):
            metas.append(_meta_param(param))
            if param in optimizer.state:
                # Some make their state when they are made themselves.
                state = optimizer.state[param]
                twin.state[metas[-1]] = {key: _meta_entry(state[key]) for key in state}
        params += metas
        plain = {key: _plain(value) for key, value in group.items() if key != "params"}
        plain.update({way: False for way in _SCALAR_WAYS if way in plain})
        twin.param_groups.append({**plain, "params": metas})
    return twin, params


def _meta_param(param: torch.Tensor) -> torch.Tensor:
    # Gradients exist only for the types that can have one.
    meta = torch.nn.Parameter(torch.empty_like(local(param).detach(), device="meta"))
    meta.grad = torch.empty_like(meta)
    return meta


def _meta_entry(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.clone() if value.dim() == 0 else torch.empty_like(local(value), device="meta")


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, tuple):
        return tuple(_plain(part) for part in value)
    return value


@torch.no_grad()
def _make_state(twin: Optimizer) -> Exception | None:
    """Lets the twin make its state; what went wrong, if anything."""
    try:
        if not hasattr(twin, "_init_group"):
            step = type(twin).step
            getattr(step, "__wrapped__", step)(twin)
            return None
        n_lists = len(inspect.signature(twin._init_group).parameters) - 1
        for group in twin.param_groups:
            twin._init_group(group, *([] for _ in range(n_lists)))
            if isinstance(twin, SGD) and group["momentum"] != 0:
                # Its buffers begin as copies of gradients, in the step itself.
                for param in group["params"]:
                    twin.state[param]["momentum_buffer"] = torch.empty_like(param)
    except Exception as error:  # A stranger's optimizer may fail in any way on the meta device.
        return error
    return None


@dataclass(frozen=True)
class Placement:
    """How much state there is, and how much of it lies in host memory; in bytes."""

    state_bytes: int
    placed_bytes: int


class StatePlan:
    """Which sizes of state go to host memory: as many bytes as the budget takes.

    Tensors of one size are alike, so the plan counts sizes. What was not foreseen is placed if it
    fits what is left. `budget_bytes` is None for all.
    """

    def __init__(self, sizes: Sequence[int], budget_bytes: int | None) -> None:
        self.sizes = list(sizes)
        self.budget_bytes = budget_bytes
        chosen = choose(self.sizes, budget_bytes)
        self._chosen = Counter(self.sizes[place] for place in chosen)
        self.planned_bytes = sum(self.sizes[place] for place in chosen)
        self.restart()

    def restart(self) -> None:
        """Forgets what was placed: the state is about to be made anew."""
        self._waiting = Counter(self._chosen)
        self._spare_bytes = (self.budget_bytes or 0) - self.planned_bytes
        self.placed_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Whether a tensor of this size that is made now goes to host memory."""
        if self._waiting[size_bytes] > 0:
            self._waiting[size_bytes] -= 1
        elif self.budget_bytes is not None:
            if size_bytes > self._spare_bytes:
                return False
            self._spare_bytes -= size_bytes
        self.placed_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Undoes `take`, when the memory was not to be had."""
        self._waiting[size_bytes] += 1
        self.placed_bytes -= size_bytes

    @property
    def placement(self) -> Placement:
        """What is planned."""
        return Placement(sum(self.sizes), self.planned_bytes)
