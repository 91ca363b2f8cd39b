"""Functions whose kernels the dispatcher does not see, run as one op each."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import _native
from .engine import is_enabled
from .tensors import tensors_in

__all__ = ["adapt_mem_func_wrapper"]

# Read and written: a kernel may change its inputs, and nothing says which.
_UNKNOWN = 3
_wrapped: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()


def adapt_mem_func_wrapper(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls `function`, or applies it if it is a torch.autograd.Function, as one op.

    All tensors among the arguments, also inside lists and dicts, are on the device while it runs,
    and stay until it ends; so it may launch kernels of its own. The backward of an
    autograd.Function is an op of its own, with its gradients and what it saved.
    """
    is_function = isinstance(function, type) and issubclass(function, torch.autograd.Function)
    if not is_enabled():
        return function.apply(*args, **kwargs) if is_function else function(*args, **kwargs)
    name = _name(function)
    call = _with_backward(function).apply if is_function else function
    with _op(name, (args, kwargs)) as touch:
        outputs = call(*args, **kwargs)
        touch(outputs)
    return outputs


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__).replace(".<locals>", "")


@contextmanager
def _op(name: str, inputs: Any) -> Iterator[Callable[[Any], None]]:
    """One op that uses the tensors in `inputs`, and those that are touched in it."""
    adapter = _native.adapter()

    def touch(values: Any) -> None:
        for tensor in tensors_in(values):
            adapter.touch(tensor, _UNKNOWN)

    with _native.op(adapter, name):
        touch(inputs)
        yield touch


class _Context:
    """The context of a backward: what is read from it is on the device while the op runs."""

    def __init__(self, context: Any, touch: Callable[[Any], None]) -> None:
        object.__setattr__(self, "_context", context)
        object.__setattr__(self, "_touch", touch)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._context, name)
        if isinstance(value, (torch.Tensor, list, tuple, dict)):
            self._touch(value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._context, name, value)


def _with_backward(function: type) -> type:
    """A subclass of an autograd.Function whose backward is one op."""
    known = _wrapped.get(function)
    if known is not None:
        return known
    name = f"{_name(function)}.backward"

    def backward(context: Any, *gradients: Any) -> Any:
        if not is_enabled():
            return function.backward(context, *gradients)
        with _op(name, gradients) as touch:
            results = function.backward(_Context(context, touch), *gradients)
            touch(results)
        return results

    made = type(function.__name__, (function,), {"backward": staticmethod(backward)})
    made.__module__ = function.__module__
    _wrapped[function] = made
    return made
