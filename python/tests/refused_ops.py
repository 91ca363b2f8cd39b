"""Operators whose inputs do not fit together, of every kind: each raises and changes nothing.

`refused_ops.py DEVICE` runs them all; `refused_ops.py DEVICE ignored` ends with an operator that
runs although it was refused.
"""

import sys
import threading

import smartswap
import torch

MIB = 1 << 20
DEVICE = sys.argv[1]
# Of a tensor, in numbers. Segments of small blocks are larger on a GPU.
COUNT = 5 * MIB // 4 if DEVICE == "cpu" else 50 * MIB


@torch.library.custom_op("refused::add", mutates_args=("x",))
def add(x: torch.Tensor, y: torch.Tensor) -> None:
    """Asks for addresses itself, as kernels outside of PyTorch do."""
    x.data_ptr(), y.data_ptr()
    raise AssertionError("it got its addresses")


@torch.library.custom_op("refused::ignored", mutates_args=())
def ignored(x: torch.Tensor, y: torch.Tensor) -> float:
    """Never asks, so that nothing can stop it."""
    return 3.0


@torch.jit.script
def scripted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x


class Backward(torch.autograd.Function):
    """Meets the tensors in a backward pass, which a GPU has a thread for."""

    @staticmethod
    def forward(context, x, run):
        context.run = run
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        context.run()
        return gradient, None


def in_backward(run):
    seed = torch.ones(3, device=DEVICE, requires_grad=True)
    Backward.apply(seed, run).sum().backward()


def in_thread(run):
    """On a thread of its own; raises what `run` does."""
    caught = []

    def call():
        try:
            run()
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    raise caught[0] if caught else AssertionError("it ran")


def fused_step(x, y):
    x = torch.nn.Parameter(x)
    x.grad = y
    torch.optim.SGD([x], lr=1.0, fused=True).step()


def overlapping(x):
    """A view that is not one piece."""
    return x.view(-1, 2).t()


def kinds(x, y):
    """Each kind of operator, as a call that needs both tensors at once."""
    return {
        "in place": lambda: x.add_(y),
        "copy": lambda: x.copy_(y),
        "returns a number": lambda: torch.equal(x, y),
        "out": lambda: torch.mul(y, 2, out=x),
        "out of a reduction": lambda: torch.sum(torch.stack([x, y]), 0, out=x),
        "views in place": lambda: overlapping(x).mul_(overlapping(y)),
        "a view of a view": lambda: x[1:].sub_(y[1:]),
        "foreach": lambda: torch._foreach_add_([x[: COUNT // 2], x[COUNT // 2 :]], [y[0], y[1]]),
        "foreach together": lambda: torch._foreach_mul_([x, y], [y, x]),
        "fused": lambda: fused_step(x, y),
        "functional": lambda: x + y,
        "several outputs": lambda: torch.aminmax(torch.cat([x, y])),
        "masked": lambda: x.masked_fill_(y > 0, 7.0),
        "indexed": lambda: x.index_copy_(0, torch.arange(COUNT, device=DEVICE), y),
        "custom": lambda: torch.ops.refused.add(x, y),
        "scripted": lambda: scripted(x, y),
        "in a backward pass": lambda: in_backward(lambda: x.add_(y)),
        "in a thread": lambda: in_thread(lambda: x.add_(y)),
        "without gradients": lambda: torch.no_grad()(x.add_)(y),
        "in inference mode": lambda: torch.inference_mode()(torch.equal)(x, y),
    }


def check(x, y):
    """Both tensors have every number that they had."""
    for tensor, number in ((x, 1.0), (y, 10.0)):
        for part in tensor.split(COUNT // 5):
            assert bool((part == number).all()), number


def main():
    # One tensor fits, and a part of another.
    smartswap.enable(COUNT * 4 * 6 // 5, device=DEVICE)
    x = torch.ones(COUNT, device=DEVICE)
    y = torch.full((COUNT,), 10.0, device=DEVICE)
    if "ignored" in sys.argv:
        torch.ops.refused.ignored(x, y)
        print("it went on")
        return
    for kind, call in kinds(x, y).items():
        try:
            call()
        except RuntimeError as error:
            # TorchScript makes one type of all.
            assert isinstance(error, torch.OutOfMemoryError) or kind == "scripted", error
            assert "SmartSwap: " in str(error), error
            assert "out of device memory" in str(error), error
        else:
            raise AssertionError(f"{kind}: it ran")
        check(x, y)
        print(kind)
    # What needs no memory runs, and what fits does.
    assert torch.empty_like(x[:8]).shape == x.view(-1, 8)[0].shape
    assert not x.is_set_to(y) and x.is_same_size(y)
    x[:8].add_(1)
    assert x[:9].tolist() == [2.0] * 8 + [1.0]
    smartswap.step()
    assert smartswap.stats()["swapped_out_bytes"] > 0
    print("done")


main()
