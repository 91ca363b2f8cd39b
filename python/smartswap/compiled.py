"""Compiled code: kernels of torch.compile and Triton, which no operator announces, become ops."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
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
_READ, _UNKNOWN = 0, 3


def _graph_accesses(graph: Any, inputs: Any) -> Iterator[tuple[torch.Tensor, int]]:
    mutated = getattr(graph, "mutated_input_idxs", None)
    for place, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            is_read = mutated is not None and place not in mutated
            yield value, _READ if is_read else _UNKNOWN


class CompiledCode:
    """Makes one op of each compiled graph of the CPU, and of each Triton kernel.

    A graph on an accelerator is made of Triton kernels and operators, so it needs no op of its
    own. The compilers are changed when a script first imports them; they are not imported here.
    """

    def __init__(self, adapter: ModuleType, pointers: RawPointers) -> None:
        self._adapter = adapter
        self._pointers = pointers
        self._patches = Patches()
        self._imports = ImportWatch(
            {
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
        self._patches.restore()

    def _replace(self, module: ModuleType, kind: str, name: str, make: Callable[..., Any]) -> None:
        owner = getattr(module, kind, None)
        function = getattr(owner, name, None)
        if function is None:
            _log.warning("%s.%s is not there: code that it compiles may fail", kind, name)
            return
        self._patches.replace(owner, name, functools.wraps(function)(make(function)))

    def _change_graphs(self, module: ModuleType) -> None:
        self._replace(module, "CompiledFxGraph", "__call__", self._graph)

    def _change_inductor_kernels(self, module: ModuleType) -> None:
        self._replace(module, "CachingAutotuner", "run", self._kernel)

    def _change_triton_kernels(self, module: ModuleType) -> None:
        self._replace(module, "JITFunction", "run", self._kernel)

    def _graph(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(graph: Any, inputs: Any) -> Any:
            kinds = set(getattr(graph, "device_types", ()))
            if not kinds <= {"cpu"}:
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
            tensors = list(tensors_in((args, kwargs)))
            if kwargs.get("warmup") or not tensors:
                return launch(kernel, *args, **kwargs)
            with _native.op(self._adapter, f"triton::{_name(kernel)}"):
                for tensor in tensors:
                    self._adapter.touch(tensor, _UNKNOWN)
                # The launcher asks for addresses; the op already keeps what they point to.
                with self._pointers.unwatched():
                    return launch(kernel, *args, **kwargs)

        return run


def _name(kernel: Any) -> str:
    function = getattr(kernel, "fn", kernel)
    return getattr(function, "__name__", "kernel")
