"""Kernels that torch.compile makes with Triton run again, bit for bit: Triton interprets them."""

import json
import sys

import pytest
from processes import python, run

pytest.importorskip("triton")

TRAINING = """
import hashlib, json
sys.path.insert(0, {tests!r})
from interpreted import with_interpreter
with_interpreter()
torch.manual_seed(0)

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.wide = torch.nn.Linear(width, 2 * width)
        self.back = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        wide = torch.nn.functional.silu(self.wide(self.norm(x)))
        return x + self.back(torch.nn.functional.dropout(wide, 0.1))

def train(steps):
    model = Block(64)
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(128, 64)
    losses = []
    for _ in range(steps):
        loss = (compiled(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    weights = b"".join(p.detach().contiguous().numpy().tobytes() for p in model.parameters())
    return [losses, hashlib.sha256(weights).hexdigest()]

smartswap_is_on = {capped}
if smartswap_is_on:
    smartswap.enable(memory="{memory}", device="host", min_block="16KiB")
    smartswap._native.adapter().drop_at_once({drops})
trained = train(3)
recipes = smartswap._native.adapter().recipes() if smartswap_is_on else None
misses = smartswap.stats()["recomputed_ops"] if smartswap_is_on else None
print(json.dumps([trained, recipes, misses]))
"""


def training(tmp_path, memory=None, drops=False):
    tests = str(__file__).rpartition("/")[0]
    text = TRAINING.format(tests=tests, capped=memory is not None, memory=memory, drops=drops)
    return json.loads(run(tmp_path, text, python).splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_kernels_make_their_outputs_again(tmp_path):
    plain, _, _ = training(tmp_path)
    dropped, recipes, remade = training(tmp_path, "64MiB", drops=True)
    assert dropped == plain
    assert recipes["unsure_ops"] == []
    # Far more than the few operators outside the graphs.
    assert recipes["sure_kinds"] >= 8 and remade >= 10, recipes


PLANTED = """
import json
from types import SimpleNamespace
from torch._inductor.runtime.triton_heuristics import CachingAutotuner, HeuristicType
COUNT = 1 << 16

def array(tensor):
    return (ctypes.c_float * COUNT).from_address(tensor.data_ptr())

def whole(x, out, count):
    array(out)[:] = [2 * value for value in array(x)]

def half(x, out, count):
    array(out)[: count // 2] = array(x)[: count // 2]

def adding(x, out, count):
    array(out)[:] = [a + b for a, b in zip(array(x), array(out))]

CachingAutotuner.run = lambda kernel, *args, stream: kernel.work(*args)

def kernel(work, kind=HeuristicType.POINTWISE, mutated=()):
    made = CachingAutotuner.__new__(CachingAutotuner)
    names = ["in_ptr0", "out_ptr0", "xnumel"]
    made.fn = SimpleNamespace(arg_names=names, __name__=work.__name__)
    made.work, made.heuristic_type, made.mutated_arg_names = work, kind, mutated
    return made

smartswap.enable(memory="64MiB", device="host", min_block="64KiB")
adapter = smartswap._native.adapter()
adapter.drop_at_once(True)
x = values(1, COUNT)
users = kernel(whole, kind=HeuristicType.USER_AUTOTUNE)
mutating = kernel(whole, mutated=("out_ptr0",))
kernels = [kernel(whole), kernel(half), kernel(adding), users, mutating]
runs = []
for _ in range(3):
    before = adapter.recipes()["runs"]
    outs = [torch.full((COUNT,), 3.0) for _ in kernels]
    for made, out in zip(kernels, outs):
        made.run(x, out, COUNT, stream=0)
    right = [2 * x, torch.cat([x[: COUNT // 2], outs[1][COUNT // 2 :]]), x + 3, 2 * x, 2 * x]
    for out, expected in zip(outs, right):
        assert torch.equal(out, expected)
    # A part of a tensor's memory is not an output.
    wide = torch.zeros(2 * COUNT)
    kernels[0].run(x, wide[:COUNT], COUNT, stream=0)
    assert torch.equal(wide[:COUNT], 2 * x) and not wide[COUNT:].any()
    runs.append(adapter.recipes()["runs"] - before)
    del out, outs, right, expected, wide
    smartswap.step()
print(json.dumps([runs, adapter.recipes()]))
"""


def test_a_kernel_that_needs_what_was_there_is_never_run_again(tmp_path):
    runs, recipes = json.loads(run(tmp_path, PLANTED, python).splitlines()[-1])
    assert recipes["unsure_ops"] == ["triton::adding", "triton::half"]
    # The one kernel that writes all, besides what operators of the check make again.
    assert runs[-1] > 0
    assert recipes["refused"]["an output that is a part of its memory"] > 0


OUT_ARGUMENTS = """
import json
smartswap.enable(memory="64MiB", device="host", min_block="64KiB")
adapter = smartswap._native.adapter()
adapter.drop_at_once(True)
a, b = values(1, 1 << 16).view(256, 256), values(2, 1 << 16).view(256, 256)
expected = [a @ b, a + b, *torch.sort(a), a @ a]
for _ in range(3):
    product, sum, first, second = [torch.empty(256, 256) for _ in range(4)]
    places = torch.empty(256, 256, dtype=torch.int64)
    wide = torch.full((512, 256), 7.0)
    torch.mm(a, b, out=product)
    torch.add(a, b, out=sum)
    torch.sort(a, out=(first, places))
    # It reads what it writes, and one that writes a part of its memory.
    own = a.clone()
    torch.add(own, b, out=own)
    torch.mm(a, b, out=wide[:256])
    grown = torch.empty(0)
    torch.mm(a, a, out=grown)
    runs = adapter.recipes()["runs"]
    for made, right in zip([product, sum, first, places, grown], expected):
        assert torch.equal(made, right)
    assert torch.equal(own, a + b)
    assert torch.equal(wide[:256], a @ b) and (wide[256:] == 7).all()
    runs = adapter.recipes()["runs"] - runs
    smartswap.step()
print(json.dumps([runs, adapter.recipes()]))
"""


def test_operators_make_again_what_they_write_into_arguments(tmp_path):
    runs, recipes = json.loads(run(tmp_path, OUT_ARGUMENTS, python).splitlines()[-1])
    assert recipes["unsure_ops"] == []
    # Sorting writes two results, which is left alone.
    assert runs >= 3
    for why in ("is a part of its memory", "is an input as well"):
        assert recipes["refused"][f"an output that {why}"] > 0
