"""Compiled code: kernels of torch.compile and Triton, which no operator announces, become ops.

Of a kernel that Inductor has written, its arguments' names say what it does with them: `in_ptr` is
read, `out_ptr` is written from its first element to its last, `in_out_ptr` is both; what kernels
change in place besides is listed apart. Those that only read and write can be run again, as
operators can.
"""

from __future__ import annotations

import functools
import logging
import sys
import weakref
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


def _uses(kernel: Any) -> list[int]:
    """What the kernel does with a tensor, by its place among the arguments.

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

    return [use(name) for name in names]


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
        # By the identity of their kernels.
        self._ops: dict[int, Any] = {}
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
        ops = self._ops

        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("warmup"):
                return launch(kernel, *args, **kwargs)
            op = ops.get(id(kernel)) or self._op_of(kernel)
            result = op.launch(launch, kernel, args, kwargs, False)
            if result is not NotImplemented:
                return result
            hidden = list(_hidden_tensors(args, kwargs))
            if not hidden:
                return op.launch(launch, kernel, args, kwargs, True)
            with _native.op(self._adapter, f"triton::{_name(kernel)}"):
                for tensor in (*tensors_in(args), *hidden):
                    self._adapter.touch(tensor, _UNKNOWN)
                with self._pointers.unwatched():
                    return launch(kernel, *args, **kwargs)

        return run

    def _op_of(self, kernel: Any) -> Any:
        op = self._adapter.KernelOp(f"triton::{_name(kernel)}", _uses(kernel))
        self._ops[id(kernel)] = op
        # Not an attribute: compilers write kernels to files.
        weakref.finalize(kernel, self._ops.pop, id(kernel), None).atexit = False
        return op


def _hidden_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Those inside arguments, such as descriptors, and those that have names."""
    plain = (torch.Tensor, torch.nn.Parameter)
    yield from tensors_in([value for value in args if type(value) not in plain])
    yield from tensors_in(kwargs)


def _name(kernel: Any) -> str:
    function = getattr(kernel, "fn", kernel)
    return getattr(function, "__name__", "kernel")
