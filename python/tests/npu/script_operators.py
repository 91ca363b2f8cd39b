"""Holds the stand-in's operators to the CPU's and prints, as JSON, what differs.

usage: script_operators.py float32|bfloat16
"""

import json
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
import torch_npu  # noqa: F401
from standin import DEVICE
from torch import Tensor

DTYPE = getattr(torch, sys.argv[1])
# Bfloat16 has 8 bits, and operators on the CPU round some of their parts.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[DTYPE]

# Rows of at least 64 bytes: the stand-in copies none that do not begin at a multiple.
ROWS, COLUMNS = 8, 32

Case = Callable[[Tensor, Tensor], Tensor]

ELEMENTWISE: dict[str, Case] = {
    "add": lambda a, b: a + b,
    "add a number": lambda a, b: a + 2,
    "add scaled": lambda a, b: torch.add(a, b, alpha=0.3),
    "add a row": lambda a, b: a + b[0],
    "add a column": lambda a, b: a + b[:, :1],
    "subtract": lambda a, b: a - b,
    "subtract from a number": lambda a, b: 1 - a,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / (b.abs() + 1),
    "negate": lambda a, b: -a,
    "exp": lambda a, b: a.exp(),
    "square": lambda a, b: a.pow(2),
    "square root": lambda a, b: (a * a).sqrt(),
    "tanh": lambda a, b: a.tanh(),
    "relu": lambda a, b: F.relu(a),
    "gelu": lambda a, b: F.gelu(a, approximate="tanh"),
    "lerp": lambda a, b: a.lerp(b, 0.1),
    "addcmul": lambda a, b: torch.addcmul(a, b, b, value=0.1),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, b.abs() + 1, value=0.1),
    "less": lambda a, b: a < b,
    "equal": lambda a, b: a == torch.where(a < b, a, b),
    "absolute": lambda a, b: a.abs(),
    "where": lambda a, b: torch.where(a < b, a, b),
    "masked fill": lambda a, b: a.masked_fill(b < 0, -1.5),
    "finite": lambda a, b: torch.isfinite(a / (b - b)),
    "not a number": lambda a, b: torch.isnan(a / (b - b)),
    "to float": lambda a, b: a.float(),
    "to bfloat16": lambda a, b: a.bfloat16(),
    "to whole numbers": lambda a, b: (a * 10).to(torch.int64),
}
MOVEMENT: dict[str, Case] = {
    "transpose": lambda a, b: a.t().contiguous(),
    "permute": lambda a, b: a.view(4, 2, COLUMNS).permute(2, 0, 1).contiguous(),
    "slice": lambda a, b: a[:, 1:4].contiguous(),
    "every second": lambda a, b: a[:, ::2].contiguous(),
    "expand": lambda a, b: a[:1].expand(3, COLUMNS).contiguous(),
    "concatenate": lambda a, b: torch.cat([a, b], dim=1),
    "pad": lambda a, b: F.pad(a, (1, 2, 0, 3), value=0.5),
    "rows by number": lambda a, b: F.embedding(torch.tensor([3, 0, 3], device=a.device), a),
    "upper triangle": lambda a, b: a.triu(1),
    "lower triangle": lambda a, b: a.tril(),
    "zeros": lambda a, b: torch.zeros_like(a),
    "ones": lambda a, b: torch.ones_like(a),
    "full": lambda a, b: torch.full_like(a, 3.5),
}
IN_PLACE: dict[str, Case] = {
    "add in place": lambda a, b: a.clone().add_(b),
    "scale in place": lambda a, b: a.clone().mul_(0.5),
    "lerp in place": lambda a, b: a.clone().lerp_(b, 0.25),
    "zero in place": lambda a, b: a.clone().zero_(),
    "write columns": lambda a, b: _changed(a, lambda c: c[:, 1:3].copy_(b[:, 3:5])),
    "add to columns": lambda a, b: _changed(a, lambda c: c[:, ::2].add_(b[:, ::2])),
    "write a transposed": lambda a, b: _changed(a, lambda c: c[:, :8].t().copy_(b[:, 8:16])),
    "fill rows": lambda a, b: _changed(a, lambda c: c[2:5].fill_(7)),
}
SUMS: dict[str, Case] = {
    "sum": lambda a, b: a.sum(),
    "sum of columns": lambda a, b: a.sum(0),
    "sum of rows": lambda a, b: a.sum(-1, keepdim=True),
    "mean": lambda a, b: a.mean(),
    "all": lambda a, b: (a < 100).all(),
    "any": lambda a, b: (a < -100).any(),
    "matrix product": lambda a, b: a @ b.t(),
    "product with bias": lambda a, b: F.linear(a, b, b[:, 0]),
    "batch of products": lambda a, b: torch.bmm(
        a.view(2, 4, COLUMNS), b.view(2, 4, COLUMNS).transpose(1, 2)
    ),
}


def _changed(tensor: Tensor, change: Callable[[Tensor], object]) -> Tensor:
    copy = tensor.clone()
    change(copy)
    return copy


def _with_gradients(body: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [leaf.detach().clone().requires_grad_() for leaf in inputs]
    result = body(*leaves)
    slopes = torch.linspace(-1, 1, result.numel()).view(result.shape).to(result)
    result.backward(slopes)
    return [result.detach(), *(leaf.grad for leaf in leaves)]


def _targets(device: torch.device) -> Tensor:
    return torch.tensor([1, 5, 0, -100, 2, 2, 4, 3], device=device)


GRADIENTS: dict[str, Callable[[Tensor, Tensor], list[Tensor]]] = {
    "layer norm": lambda a, b: _with_gradients(
        lambda x, gain, shift: F.layer_norm(x, (COLUMNS,), gain, shift), a, b[0], b[1]
    ),
    "softmax": lambda a, b: _with_gradients(lambda x: x.softmax(-1), a),
    "log softmax": lambda a, b: _with_gradients(lambda x: x.log_softmax(-1), a),
    "gelu slope": lambda a, b: _with_gradients(lambda x: F.gelu(x, approximate="tanh"), a),
    "linear slope": lambda a, b: _with_gradients(F.linear, a, b, b[:, 0]),
    "cross entropy": lambda a, b: _with_gradients(
        lambda x: F.cross_entropy(x.float(), _targets(x.device)), a
    ),
    "cross entropy, summed": lambda a, b: _with_gradients(
        lambda x: F.cross_entropy(x.float(), _targets(x.device), reduction="sum"), a
    ),
    "embedding": lambda a, b: _with_gradients(
        lambda table: F.embedding(torch.tensor([[1, 7], [1, 0]], device=table.device), table), a
    ),
}


def outcome(body: Callable[[Tensor, Tensor], object], device: str) -> list[Tensor]:
    """What a case gives on a device."""
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(ROWS, COLUMNS, generator=generator).to(DTYPE).to(device) for _ in range(2))
    result = body(a, b)
    results = result if isinstance(result, list) else [result]
    return [each.cpu() for each in results]


def difference(body: Callable[[Tensor, Tensor], object]) -> str | None:
    """How a case differs between the devices, in words."""
    try:
        pairs = zip(outcome(body, "cpu"), outcome(body, DEVICE), strict=True)
        for due, got in pairs:
            torch.testing.assert_close(got, due, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    except (AssertionError, RuntimeError) as error:
        return str(error)[:500]
    return None


cases = ELEMENTWISE | MOVEMENT | IN_PLACE | SUMS | GRADIENTS
found = {name: text for name, body in cases.items() if (text := difference(body))}
print(json.dumps({"compared": len(cases), "differing": found}))
