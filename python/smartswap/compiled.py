"""Compiled code: kernels of torch.compile and Triton, which no operator announces, become ops.

Of a kernel that Inductor has written, its arguments' names say what it does with them: `in_ptr` is
read, `out_ptr` is written from its first element to its last, `in_out_ptr` is both; what kernels
change in place besides is listed apart. Those that only read and write can be run again, as
operators can.
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import torch

from . import _native
from .imports import ImportWatch
from .patches import Patches
from .pointers import RawPointers
from .tensors import tensors_in

__all__ = ["CompiledCode"]

_log = logging.getLogger("smartswap")
_READ, _WRITE, _UNKNOWN = 0, 1, 3
_NO_TENSOR = -1
_USES = "_smartswap_uses"
_numbers = itertools.count()


def _graph_accesses(graph: Any, inputs: Any) -> Iterator[tuple[torch.Tensor, int]]:
    mutated = getattr(graph, "mutated_input_idxs", None)
    for place, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            is_read = mutated is not None and place not in mutated
            yield value, _READ if is_read else _UNKNOWN


def _is_one_op(graph: Any) -> bool:
    """Whether nobody announces what a graph is made of: C++ for the CPU."""
    config = sys.modules.get("torch._inductor.config")
    is_triton = getattr(config, "cpu_backend", "cpp") == "triton"
    return set(getattr(graph, "device_types", ())) <= {"cpu"} and not is_triton


def _uses_by_name(kernel: Any) -> tuple[int, list[int]]:
    """A number for the kernel, and what it does with each argument, by its place.

    Kernels that people write are called as they like.
    """
    names = getattr(getattr(kernel, "fn", None), "arg_names", ())
    mutated = getattr(kernel, "mutated_arg_names", None)
    kind = getattr(getattr(kernel, "heuristic_type", None), "name", "USER_AUTOTUNE")
    is_ours = mutated is not None and kind != "USER_AUTOTUNE"

    def use(name: str) -> int:
        if not is_ours or name in mutated:
            return _UNKNOWN
        return {"in_ptr": _READ, "out_ptr": _WRITE}.get(name.rstrip("0123456789"), _UNKNOWN)

    return next(_numbers), [use(name) for name in names]


def _uses(kernel: Any, args: tuple[Any, ...]) -> tuple[int, list[int]]:
    try:
        number, by_name = getattr(kernel, _USES)
    except AttributeError:
        number, by_name = _uses_by_name(kernel)
        setattr(kernel, _USES, (number, by_name))
    return number, [
        (by_name[place] if place < len(by_name) else _UNKNOWN)
        if isinstance(value, torch.Tensor)
        else _NO_TENSOR
        for place, value in enumerate(args)
    ]


class CompiledCode:
    """Makes one op of each compiled graph of the CPU, and of each Triton kernel.

    A graph on an accelerator is made of Triton kernels and operators, so it needs no op of its
    own. The compilers are changed when a script first imports them; they are not imported here.
    """

    def __init__(
        self, adapter: ModuleType, pointers: RawPointers, *, is_capped: bool = False
    ) -> None:
        self._adapter = adapter
        self._pointers = pointers
        self._is_capped = is_capped
        self._patches = Patches()
        self._settings = ExitStack()
        self._imports = ImportWatch(
            {
                "torch._inductor.config": self._change_settings,
                "torch._inductor.output_code": self._change_graphs,
                "torch._inductor.runtime.triton_heuristics": self._change_inductor_kernels,
                "triton.runtime.jit": self._change_triton_kernels,
            }
        )

    def install(self) -> None:
        """Changes what is imported already, and watches for the rest."""
        self._imports.install()

    def remove(self) -> None:
        """Puts back what was changed, and watches no more."""
        self._imports.remove()
        self._settings.close()
        self._patches.restore()

    def _replace(self, module: ModuleType, kind: str, name: str, make: Callable[..., Any]) -> None:
        owner = getattr(module, kind, None)
        function = getattr(owner, name, None)
        if function is None:
            _log.warning("%s.%s is not there: code that it compiles may fail", kind, name)
            return
        self._patches.replace(owner, name, functools.wraps(function)(make(function)))

    def _change_settings(self, config: ModuleType) -> None:
        """One tensor, one memory: what writes over its input, or over what nobody reads any more,
        can be run again only as long as nothing has been written over."""
        if self._is_capped:
            settings = config.patch(inplace_buffers=False, allow_buffer_reuse=False)
            self._settings.enter_context(settings)

    def _change_graphs(self, module: ModuleType) -> None:
        self._replace(module, "CompiledFxGraph", "__call__", self._graph)

    def _change_inductor_kernels(self, module: ModuleType) -> None:
        self._replace(module, "CachingAutotuner", "run", self._kernel)

    def _change_triton_kernels(self, module: ModuleType) -> None:
        self._replace(module, "JITFunction", "run", self._kernel)

    def _graph(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(graph: Any, inputs: Any) -> Any:
            if not _is_one_op(graph):
                # Its own code asks for addresses to see how they are aligned.
                with self._pointers.unwatched():
                    return call(graph, inputs)
            with _native.op(self._adapter, "torch.compile::graph"):
                for value, access in _graph_accesses(graph, inputs):
                    self._adapter.touch(value, access)
                outputs = call(graph, inputs)
                for value in outputs if isinstance(outputs, (list, tuple)) else (outputs,):
                    if isinstance(value, torch.Tensor):
                        self._adapter.touch(value, _UNKNOWN)
            return outputs

        return run

    def _kernel(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("warmup"):
                return launch(kernel, *args, **kwargs)
            hidden = list(_hidden_tensors(args, kwargs))
            number, uses = _uses(kernel, args)
            if not hidden and all(use == _NO_TENSOR for use in uses):
                return launch(kernel, *args, **kwargs)
            name = f"triton::{_name(kernel)}"
            self._adapter.begin_kernel(name, uses, *args)
            try:
                for tensor in hidden:
                    self._adapter.touch(tensor, _UNKNOWN)
                result = again(kernel, args, kwargs)
            except BaseException:
                self._adapter.end()
                raise
            if hidden:
                self._adapter.end()
            else:
                self._adapter.end_kernel(name, uses, again, kernel, kwargs, number, *args)
            return result

        def again(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # The launcher asks for addresses; the op already keeps what they point to.
            with self._pointers.unwatched():
                return launch(kernel, *args, **kwargs)

        return run


def _hidden_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Those inside arguments, such as descriptors, and those that have names."""
    plain = (torch.Tensor, int, float)
    yield from tensors_in([value for value in args if not isinstance(value, plain)])
    yield from tensors_in([value for value in kwargs.values() if not isinstance(value, int)])


def _name(kernel: Any) -> str:
    function = getattr(kernel, "fn", kernel)
    return getattr(function, "__name__", "kernel")
