"""The virtual optimizer: optimizer state in host memory that the device addresses directly."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.overrides import TorchFunctionMode

from .budget import stage_bytes
from .errors import SettingsError, UnsupportedOptimizerError
from .sizes import format_size
from .state_plan import StatePlan, is_placeable, local, predict_sizes
from .swapped import Allocate, allocator, is_swap_tensor

__all__ = ["virtual_optimizer"]

_log = logging.getLogger("smartswap")


def virtual_optimizer(
    optimizer: Optimizer,
    budget: str | float | Sequence[str | float] = "all",
    *,
    stage: int = 0,
    n_stages: int = 1,
    master_weights: bool = False,
) -> Optimizer:
    """Lets the state of `optimizer` live in host memory, as much of it as `budget` says.

    budget: "all", a number of GiB, or one of these for each pipeline stage.
    stage, n_stages: the pipeline stage of this process, and their number.
    master_weights: the optimizer's own fp32 parameters live there too. Ask for it where they are
    copies that only the optimizer uses.

    The moments are never made on the device: the optimizer's own initialisation gets host memory.
    `state_dict` has them as they are, and `load_state_dict` fills host memory directly. Returns
    the optimizer. Raises NotEnabledError, SettingsError, UnsupportedOptimizerError.
    """
    try:
        budget_bytes = stage_bytes(budget, stage, n_stages)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    allocate = allocator()
    bare = _bare(optimizer)
    if "_smartswap_virtual" in bare.__dict__:
        raise SettingsError("this optimizer is virtual already; call virtual_optimizer once")
    state = VirtualState(bare, budget_bytes, allocate, is_swap_tensor)
    if master_weights:
        state.add_master_weights()
    state.install()
    bare.__dict__["_smartswap_virtual"] = state
    placement = state.plan.placement
    _log.info(
        "virtual optimizer: %s of %s of the state of %s in host memory",
        format_size(placement.placed_bytes),
        format_size(placement.state_bytes),
        type(bare).__name__,
    )
    return optimizer


def _bare(optimizer: Any) -> Optimizer:
    """The optimizer of torch.optim inside the wrappers of training libraries."""
    inner = optimizer
    while not isinstance(inner, Optimizer):
        inner = getattr(inner, "optimizer", None)
        if inner is None:
            raise UnsupportedOptimizerError(
                f"virtual optimizer: {type(optimizer).__name__} is not a torch.optim.Optimizer"
            )
    return inner


class VirtualState:
    """The state of one optimizer, placed by a plan. `allocate` gives host memory."""

    def __init__(
        self,
        optimizer: Optimizer,
        budget_bytes: int | None,
        allocate: Allocate,
        is_placed: Callable[[torch.Tensor], bool],
    ) -> None:
        # The optimizer owns this; a cycle would keep its state alive longer than it lives.
        self._optimizer = weakref.ref(optimizer)
        self.plan = StatePlan(predict_sizes(optimizer), budget_bytes)
        self._masters: list[torch.Tensor] = []
        self._allocate = allocate
        self._is_placed = is_placed

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer."""
        optimizer = self._optimizer()
        assert optimizer is not None, "the optimizer owns its virtual state"
        return optimizer

    def add_master_weights(self) -> None:
        """Plans for the optimizer's fp32 parameters as well, before `install`."""
        params = chain.from_iterable(group["params"] for group in self.optimizer.param_groups)
        self._masters = [param for param in params if param.dtype == torch.float32]
        sizes = [local(param).nbytes for param in self._masters]
        self.plan = StatePlan(sizes + self.plan.sizes, self.plan.budget_bytes)

    def install(self) -> None:
        """Places what exists, and sees to what the optimizer makes later."""
        self._place_masters()
        self.adopt()
        optimizer = self.optimizer
        if hasattr(optimizer, "_init_group"):
            optimizer._init_group = self._around_init(self._unbound("_init_group"))
        if isinstance(optimizer, SGD) or not hasattr(optimizer, "_init_group"):
            optimizer.step = self._around_step(self._unbound("step"))
        optimizer.register_load_state_dict_pre_hook(self._before_load)

    def _unbound(self, name: str) -> Callable[..., Any]:
        """A method of the optimizer that does not keep the optimizer alive."""
        own = self.optimizer.__dict__.get(name)
        if own is not None:
            return own
        method = getattr(type(self.optimizer), name)

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return method(self.optimizer, *args, **kwargs)

        return call

    @torch.no_grad()
    def adopt(self) -> None:
        """Moves existing state to host memory, as far as the plan goes."""
        for param, state in self.optimizer.state.items():
            if not isinstance(param, torch.Tensor):
                continue
            for key, value in state.items():
                if is_placeable(param, key, value) and not self._is_placed(value):
                    state[key] = self.place(value)

    def place(self, source: torch.Tensor, fill: bool = True) -> torch.Tensor:
        """A tensor like `source` in host memory, with its values if `fill`; or `source`."""
        inner = local(source)
        if not self.plan.take(inner.nbytes):
            return source
        target = self.empty_like(inner, inner.device)
        if fill:
            target.copy_(inner)
        return _wrap_like(source, target)

    def empty_like(self, source: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Host memory for a tensor of the shape, strides and dtype that `empty_like` gives."""
        meta = torch.empty_like(source, device="meta")
        try:
            flat = self._allocate([meta.numel()], meta.dtype, device)
        except Exception:
            self.plan.give_back(meta.nbytes)
            raise
        return flat.as_strided(meta.size(), meta.stride())

    @torch.no_grad()
    def _place_masters(self) -> None:
        for param in self._masters:
            placed = self.place(param.detach())
            if placed.untyped_storage()._cdata != param.untyped_storage()._cdata:
                param.data = placed

    def _around_init(self, init: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(init)
        def run(group: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            if not self._lacks_state(group, None):
                return init(group, *args, **kwargs)
            with _Creation(self, _LIKE):
                return init(group, *args, **kwargs)

        return run

    def _around_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        is_sgd = isinstance(self.optimizer, SGD)
        key = "momentum_buffer" if is_sgd else None

        @functools.wraps(step)
        def run(*args: Any, closure: Any = None) -> Any:
            args = args or (() if closure is None else (closure,))
            groups = self.optimizer.param_groups
            if is_sgd:
                groups = [group for group in groups if group["momentum"] != 0]
            # A closure makes the gradients inside the step.
            if not args and not any(self._lacks_state(g, key) for g in groups):
                return step()
            with _Creation(self, _SGD if is_sgd else _LIKE) as creation:
                result = step(*(creation.outside(arg) for arg in args))
            self.adopt()
            return result

        # Schedulers take the function out of what they think is a method, and bind it themselves.
        run.__func__ = lambda _, *args, **kwargs: run(*args, **kwargs)
        return run

    def _lacks_state(self, group: dict[str, Any], key: str | None) -> bool:
        states = self.optimizer.state
        for param in group["params"]:
            if param.grad is None:
                continue
            state = states.get(param)
            if not state or (key is not None and state.get(key) is None):
                return True
        return False

    @torch.no_grad()
    def _before_load(self, _: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any] | None:
        """Puts the state to load into host memory, so that loading it makes nothing new."""
        groups, saved_groups = self.optimizer.param_groups, state_dict["param_groups"]
        lengths = [len(group["params"]) for group in groups]
        if lengths != [len(group["params"]) for group in saved_groups]:
            return None  # The optimizer says what is wrong.
        params = chain.from_iterable(group["params"] for group in groups)
        names = chain.from_iterable(group["params"] for group in saved_groups)
        params_by_name = dict(zip(names, params, strict=True))
        self.plan.restart()
        for master in self._masters:
            self.plan.take(local(master).nbytes)
        loaded = {}
        for name, state in state_dict["state"].items():
            param = params_by_name.get(name)
            is_tensors = isinstance(param, torch.Tensor) and isinstance(state, dict)
            loaded[name] = self._loaded(param, state) if is_tensors else state
        return {**state_dict, "state": loaded}

    def _loaded(self, param: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        device = local(param).device
        loaded = {}
        for key, value in state.items():
            loaded[key] = value
            if not is_placeable(param, key, value):
                continue
            inner = local(value)
            if param.is_floating_point():
                # Off the device, so that the device holds no second copy.
                inner = inner.to(param.dtype)
            if not self.plan.take(inner.nbytes):
                continue
            if self._is_placed(inner) and inner.device == device:
                loaded[key] = _wrap_like(value, inner)
                continue
            target = self.empty_like(inner, device)
            target.copy_(inner)
            loaded[key] = _wrap_like(value, target)
        return loaded


def _wrap_like(source: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """`inner` as a distributed tensor if `source` is one."""
    if local(source) is source:
        return inner
    if local(source) is inner:
        return source
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        inner,
        source.device_mesh,
        source.placements,
        run_check=False,
        shape=source.shape,
        stride=source.stride(),
    )


def _fill_zero(target: torch.Tensor, *_: Any, **__: Any) -> None:
    target.zero_()


def _fill_one(target: torch.Tensor, *_: Any, **__: Any) -> None:
    target.fill_(1)


def _fill_value(target: torch.Tensor, args: Any, kwargs: Any) -> None:
    target.fill_(kwargs["fill_value"] if "fill_value" in kwargs else args[1])


def _fill_copy(target: torch.Tensor, args: Any, _: Any) -> None:
    target.copy_(local(args[0]))


def _leave(*_: Any) -> None:
    """Nothing asks for values."""


# The ways in which optimizers make state, each with what fills it.
_LIKE = {
    torch.zeros_like: _fill_zero,
    torch.ones_like: _fill_one,
    torch.full_like: _fill_value,
    torch.empty_like: _leave,
    torch.Tensor.new_zeros: _fill_zero,
}
_SGD = {torch.Tensor.clone: _fill_copy, torch.clone: _fill_copy, torch.empty_like: _leave}


class _Creation(TorchFunctionMode):
    """While it is active, tensors that optimizers make as state come from host memory."""

    def __init__(self, state: VirtualState, makers: dict[Any, Callable[..., None]]) -> None:
        super().__init__()
        self._state = state
        self._makers = makers
        self._paused = False

    def outside(self, closure: Any) -> Any:
        """A closure in which tensors are not state."""
        if not callable(closure):
            return closure

        def run() -> Any:
            self._paused = True
            try:
                return closure()
            finally:
                self._paused = False

        return run

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        fill = self._makers.get(func)
        if fill is None or self._paused or not args or not isinstance(args[0], torch.Tensor):
            return func(*args, **kwargs)
        source = local(args[0])
        if "device" in kwargs or source.layout != torch.strided or source.is_meta:
            return func(*args, **kwargs)
        shape = func(torch.empty_like(source, device="meta"), *args[1:], **kwargs)
        if (shape.dim() == 0 and source.dim() > 0) or not self._state.plan.take(shape.nbytes):
            return func(*args, **kwargs)
        target = self._state.empty_like(shape, source.device)
        fill(target, args, kwargs)
        return _wrap_like(args[0], target)
