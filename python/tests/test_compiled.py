"""Kernels of compilers become ops, on stand-ins for the compilers' modules."""

import importlib
import sys

import pytest
import torch
from smartswap.compiled import CompiledCode
from smartswap.pointers import RawPointers

GRAPHS = """
class CompiledFxGraph:
    device_types = ("cpu",)
    mutated_input_idxs = (1,)
    def __call__(self, inputs):
        result = inputs[0] + inputs[1]
        inputs.clear()
        return (result, None)
"""
KERNELS = """
class JITFunction:
    def __init__(self, fn):
        self.fn = fn
    def run(self, *args, grid, warmup, **kwargs):
        return [value.data_ptr() for value in args if hasattr(value, "data_ptr")]
"""


class Adapter:
    """Takes down the calls of an adapter."""

    def __init__(self):
        self.calls = []
        self.unwatched = 0

    def begin(self, name):
        self.calls.append(("begin", name))

    def touch(self, tensor, access):
        self.calls.append(("touch", tensor.shape[0], access))

    def end(self):
        self.calls.append(("end",))

    def unwatch(self):
        self.unwatched += 1

    def watch_again(self):
        self.unwatched -= 1

    def watches(self):
        return self.unwatched == 0

    def KernelOp(self, name, uses):
        adapter = self

        class KernelOp:
            def launch(self, launch, kernel, args, kwargs, known):
                tensors = [value for value in args if isinstance(value, torch.Tensor)]
                if not tensors:
                    return launch(kernel, *args, **kwargs)
                adapter.begin(name)
                for tensor in tensors:
                    adapter.touch(tensor, 3)
                adapter.unwatch()
                result = launch(kernel, *args, **kwargs)
                adapter.watch_again()
                adapter.end()
                return result

        return KernelOp()

    def moves(self, address):
        return True

    owns = moves

    def hold(self, address, by):
        self.calls.append(("hold", address))

    def lend(self, address, by):
        self.calls.append(("lend", address))


@pytest.fixture
def made(tmp_path, monkeypatch):
    """An adapter, and packages that look like the compilers but are imported first here."""
    (tmp_path / "compilers").mkdir()
    (tmp_path / "compilers" / "output_code.py").write_text(GRAPHS)
    (tmp_path / "compilers" / "jit.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    adapter = Adapter()
    pointers = RawPointers(adapter)
    code = CompiledCode(adapter, pointers)
    changes = code._imports._changes
    changes["compilers.output_code"] = changes.pop("torch._inductor.output_code")
    changes["compilers.jit"] = changes.pop("triton.runtime.jit")
    changes.pop("torch._inductor.runtime.triton_heuristics")
    changes.pop("torch._inductor.config")
    pointers.install()
    code.install()
    yield adapter, code
    code.remove()
    pointers.remove()
    for name in ("compilers", "compilers.output_code", "compilers.jit"):
        sys.modules.pop(name, None)


def test_a_kernel_is_an_op_and_holds_nothing(made):
    adapter, code = made
    module = importlib.import_module("compilers.jit")
    plain = module.JITFunction.run.__wrapped__

    def scale():
        pass

    kernel = module.JITFunction(scale)
    tensors = [torch.zeros(8), torch.zeros(9)]
    addresses = kernel.run(tensors[0], 3, tensors[1], grid=(1,), warmup=False)
    assert addresses == [tensor.data_ptr() for tensor in tensors]
    expected = [("begin", "triton::scale"), ("touch", 8, 3), ("touch", 9, 3), ("end",)]
    assert adapter.calls[:4] == expected
    # Where no kernel of ours asks, memory is lent.
    assert [call[0] for call in adapter.calls[4:]] == ["lend", "lend"]
    adapter.calls.clear()
    kernel.run(tensors[0], grid=(1,), warmup=True)
    assert [call[0] for call in adapter.calls] == ["lend"]
    code.remove()
    assert module.JITFunction.run is plain


def test_a_graph_of_the_cpu_is_an_op_and_one_of_an_accelerator_is_not(made):
    adapter, _ = made
    graph = importlib.import_module("compilers.output_code").CompiledFxGraph()
    result, _none = graph([torch.ones(4), torch.ones(4)])
    assert torch.equal(result, torch.full((4,), 2.0))
    expected = [("begin", "torch.compile::graph"), ("touch", 4, 0), ("touch", 4, 3)]
    assert adapter.calls == [*expected, ("touch", 4, 3), ("end",)]
    adapter.calls.clear()
    type(graph).device_types = ("cpu", "cuda")
    graph([torch.ones(4), torch.ones(4)])
    assert adapter.calls == []


def test_an_op_that_fails_ends(made):
    adapter, _ = made
    graph = importlib.import_module("compilers.output_code").CompiledFxGraph()
    with pytest.raises(RuntimeError):
        graph([torch.ones(4), torch.ones(3)])
    assert adapter.calls[-1] == ("end",)


def test_the_compilers_have_what_is_changed(caplog):
    pytest.importorskip("triton")
    adapter = Adapter()
    code = CompiledCode(adapter, RawPointers(adapter))
    code.install()
    try:
        for module, kind, name in (
            ("torch._inductor.output_code", "CompiledFxGraph", "__call__"),
            ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "run"),
            ("triton.runtime.jit", "JITFunction", "run"),
        ):
            owner = getattr(importlib.import_module(module), kind)
            assert hasattr(getattr(owner, name), "__wrapped__"), kind
    finally:
        code.remove()
    assert not caplog.records
