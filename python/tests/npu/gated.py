"""The operator of gated_op.cpp, which a test has compiled, as a module and with its gradient."""

import importlib.util
import sys
from types import ModuleType

import torch
from torch import Tensor


def load(path: str) -> ModuleType:
    """The compiled module.

    It is not in sys.modules: SmartSwap makes ops of the functions of modules that it finds
    there, and here the hooks alone are to say what the operator uses.
    """
    spec = importlib.util.spec_from_file_location("gated_op", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


op = load(sys.argv[1])


class Gated(torch.autograd.Function):
    """y = x * sigmoid(gate)."""

    @staticmethod
    def forward(ctx, x: Tensor, gate: Tensor) -> Tensor:
        ctx.save_for_backward(x, gate)
        return op.forward(x, gate)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor]:
        return op.backward(dy.contiguous(), *ctx.saved_tensors)
