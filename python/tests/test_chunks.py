"""Chunked operators give the bits of the whole ones, and leave PyTorch as it was."""

import copy
import importlib

import pytest
import torch
from smartswap.chunks import ChunkedOps, split

SHAPES = [(33, 7), (5,), (64, 64), (1,), (3, 4, 5), (128, 16), (2, 2), (90,)]
PART_BYTES = 4096
STEPS = 4

OPTIMIZERS = [
    ("Adadelta", {"foreach": True, "weight_decay": 0.1}),
    ("Adadelta", {"foreach": True, "maximize": True}),
    ("Adafactor", {"foreach": True}),
    ("Adafactor", {"foreach": True, "maximize": True, "weight_decay": 0.1}),
    ("Adagrad", {"foreach": True, "weight_decay": 0.1, "lr_decay": 0.1}),
    ("Adagrad", {"foreach": True, "maximize": True, "initial_accumulator_value": 0.5}),
    ("Adagrad", {"fused": True, "weight_decay": 0.1}),
    ("Adam", {"foreach": True, "weight_decay": 0.1}),
    ("Adam", {"foreach": True, "amsgrad": True, "maximize": True}),
    ("Adam", {"fused": True, "weight_decay": 0.1}),
    ("Adam", {"fused": True, "amsgrad": True, "maximize": True}),
    ("Adam", {"fused": True, "lr": torch.tensor(1e-2)}),
    ("AdamW", {"foreach": True, "amsgrad": True}),
    ("AdamW", {"fused": True, "amsgrad": True, "weight_decay": 0.2}),
    ("Adamax", {"foreach": True, "weight_decay": 0.1}),
    ("Adamax", {"foreach": True, "maximize": True}),
    ("ASGD", {"foreach": True, "weight_decay": 0.1, "t0": 2}),
    ("ASGD", {"foreach": True, "maximize": True}),
    ("NAdam", {"foreach": True, "weight_decay": 0.1}),
    ("NAdam", {"foreach": True, "decoupled_weight_decay": True, "maximize": True}),
    ("RAdam", {"foreach": True, "weight_decay": 0.1}),
    ("RAdam", {"foreach": True, "decoupled_weight_decay": True, "maximize": True}),
    ("RMSprop", {"foreach": True, "momentum": 0.9, "centered": True}),
    ("RMSprop", {"foreach": True, "maximize": True, "weight_decay": 0.1}),
    ("Rprop", {"foreach": True}),
    ("Rprop", {"foreach": True, "maximize": True}),
    ("SGD", {"foreach": True}),
    ("SGD", {"foreach": True, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"foreach": True, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
    ("SGD", {"fused": True, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"fused": True}),
]


def bits(tensor):
    """Equal for equal bits alone: neither -0.0 and 0.0 nor two NaNs are mixed up."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).clone()


def parameters(dtypes=(torch.float32,)):
    generator = torch.Generator().manual_seed(11)
    made = []
    for place, shape in enumerate(SHAPES):
        values = torch.randn(shape, generator=generator).to(dtypes[place % len(dtypes)])
        made.append(torch.nn.Parameter(values))
    return made


def train(name, options, chunks=None, dtypes=(torch.float32,)):
    params = parameters(dtypes)
    options = copy.deepcopy({"lr": 1e-2, **options})
    optimizer = getattr(torch.optim, name)(params, **options)
    generator = torch.Generator().manual_seed(12)
    if chunks is not None:
        chunks.install()
    try:
        for step in range(STEPS):
            for place, param in enumerate(params):
                grad = torch.randn(param.shape, generator=generator).to(param.dtype)
                grad.view(-1)[0] = -0.0
                # One parameter joins late.
                param.grad = None if place == 3 and step == 0 and name != "SGD" else grad
            torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
    finally:
        if chunks is not None:
            chunks.remove()
    result = {"params": [bits(param) for param in params]}
    for place, param in enumerate(params):
        for key, value in optimizer.state[param].items():
            if isinstance(value, torch.Tensor):
                result[f"{place}.{key}"] = [bits(value)]
    return result


def assert_same(left, right):
    assert left.keys() == right.keys()
    for key, values in left.items():
        for one, other in zip(values, right[key], strict=True):
            assert torch.equal(one, other), key


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=lambda value: str(value))
def test_optimizer_steps_are_bit_identical(name, options):
    chunks = ChunkedOps(PART_BYTES)
    chunked = train(name, options, chunks)
    assert chunks.parts_run > STEPS
    assert_same(train(name, options), chunked)


@pytest.mark.parametrize("name", ["Adam", "Adafactor", "SGD", "RMSprop"])
def test_mixed_dtypes_are_bit_identical(name):
    dtypes = (torch.float32, torch.bfloat16, torch.float64)
    chunks = ChunkedOps(PART_BYTES)
    chunked = train(name, {"foreach": True}, chunks, dtypes)
    assert chunks.parts_run > 0
    assert_same(train(name, {"foreach": True}, None, dtypes), chunked)


def test_all_optimizers_with_lists_are_covered():
    chunks = ChunkedOps(1)
    chunks.install()
    try:
        for name in ("adam", "sgd", "adagrad"):
            module = importlib.import_module(f"torch.optim.{name}")
            assert hasattr(getattr(module, f"_fused_{name}"), "__wrapped__")
        for name in {name.lower() for name, _ in OPTIMIZERS} - {"adamw", "adafactor"}:
            module = importlib.import_module(f"torch.optim.{name}")
            assert hasattr(getattr(module, f"_multi_tensor_{name}"), "__wrapped__")
    finally:
        chunks.remove()
    tested = {name for name, _ in OPTIMIZERS}
    listed = {
        name
        for name in dir(torch.optim)
        if isinstance(getattr(torch.optim, name), type)
        and issubclass(getattr(torch.optim, name), torch.optim.Optimizer)
    }
    # These step tensor by tensor, or over one flat vector.
    assert listed - tested == {"LBFGS", "Muon", "Optimizer", "SparseAdam"}


def test_foreach_operators_are_bit_identical_and_return_alike():
    tensors = [param.detach() for param in parameters()]
    others = [tensor.abs() + 0.5 for tensor in tensors]
    scalars = [float(place + 1) for place in range(len(tensors))]
    calls = [
        lambda: torch._foreach_norm(tensors, 2),
        lambda: torch._foreach_norm(tensors, float("inf")),
        lambda: torch._foreach_add(tensors, others, alpha=0.5),
        lambda: torch._foreach_add(tensors, scalars),
        lambda: torch._foreach_mul(tensors, torch.tensor(0.3)),
        lambda: torch._foreach_pow(2.0, tensors),
        lambda: torch._foreach_addcdiv(tensors, tensors, others, value=0.1),
        lambda: torch._foreach_addcdiv(tensors, tensors, others, scalars),
        lambda: torch._foreach_addcmul(tensors, tensors, others, torch.tensor(scalars)),
        lambda: torch._foreach_lerp(tensors, others, 0.1),
        lambda: torch._foreach_max(tensors),
    ]
    whole = [call() for call in calls]
    chunks = ChunkedOps(PART_BYTES)
    chunks.install()
    try:
        parts = [call() for call in calls]
        assert chunks.parts_run > len(calls)
        changed = [tensor.clone() for tensor in tensors]
        assert torch._foreach_mul_(changed, scalars) is not None
    finally:
        chunks.remove()
    for one, other in zip(whole, parts, strict=True):
        assert type(one) is type(other)
        assert_same({"": [bits(t) for t in one]}, {"": [bits(t) for t in other]})
    expected = [tensor * scalar for tensor, scalar in zip(tensors, scalars, strict=True)]
    assert_same({"": list(map(bits, expected))}, {"": list(map(bits, changed))})


def test_scaler_finds_an_infinity_in_any_part():
    def unscale(values):
        found, scale = torch.zeros(1), torch.full((1,), 0.25)
        torch._amp_foreach_non_finite_check_and_unscale_(values, found, scale)
        return found

    chunks = ChunkedOps(PART_BYTES)
    chunks.install()
    try:
        for bad in range(len(SHAPES)):
            values = [param.detach().clone() for param in parameters()]
            values[bad].view(-1)[0] = float("inf")
            assert unscale(values).item() == 1.0
        values = [param.detach().clone() for param in parameters()]
        assert unscale(values).item() == 0.0
        for value, param in zip(values, parameters(), strict=True):
            assert torch.equal(value, param.detach() * 0.25)
        assert chunks.parts_run > 0
    finally:
        chunks.remove()


def test_parts_hold_no_more_than_the_limit_and_cover_all():
    tensors = [torch.zeros(size) for size in (10, 20, 400, 1, 1, 30)]
    ranges = split([tensors, tensors], 400)
    assert ranges == [(0, 2), (2, 3), (3, 6)]
    assert split([tensors], 10**9) == [(0, 6)]
    assert split([tensors], 1) == [(place, place + 1) for place in range(6)]


def test_parts_end_where_no_memory_is_shared():
    own = [torch.zeros(10) for _ in range(6)]
    shared = [*torch.zeros(30).split(10), *torch.zeros(20).split(10), torch.zeros(10)]
    # Two places at most, of 80 bytes each.
    assert split([own, own], 160) == [(0, 2), (2, 4), (4, 6)]
    assert split([own, shared], 160) == [(0, 2), (2, 3), (3, 5), (5, 6)]
    assert split([own, shared], 160, 240) == [(0, 3), (3, 5), (5, 6)]
    assert split([own, shared], 1, 160) == [(0, 2), (2, 3), (3, 5), (5, 6)]
    assert split([own, shared], 240) == [(0, 3), (3, 6)]
    # Those of the embedding and of the head lie in one block under FSDP.
    around = [shared[0], *own[1:5], shared[1]]
    assert split([own, around], 160, 10**6) == [(0, 2), (2, 4), (4, 6)]


def test_install_and_remove_leave_nothing_behind():
    module = importlib.import_module("torch.optim.adam")
    before = (module._fused_adam, module._multi_tensor_adam, torch._foreach_add_)
    chunks = ChunkedOps(PART_BYTES)
    chunks.install()
    chunks.install()
    assert module._fused_adam is not before[0]
    chunks.remove()
    assert (module._fused_adam, module._multi_tensor_adam, torch._foreach_add_) == before


def test_torch_script_compiles_what_it_would_without():
    chunks = ChunkedOps(PART_BYTES)
    chunks.install()
    try:
        # As `torch.distributed.optim` does when it is imported; with rprop in all of its versions.
        update = torch.jit.script(importlib.import_module("torch.optim.rprop").rprop)
    finally:
        chunks.remove()
    given, weights = torch.ones(4), [torch.zeros(4) for _ in range(2)]
    before, sizes = [torch.zeros(4)], [torch.full((4,), 0.5)]
    steps = [torch.tensor(0.0)]
    names = "step_size_min", "step_size_max", "etaminus", "etaplus"
    settings = dict(zip(names, (1e-6, 50.0, 0.5, 1.2)))
    ways = dict.fromkeys(("foreach", "maximize", "capturable", "differentiable"), False)
    update(weights[:1], [given], before, sizes, steps, **ways, **settings)
    optimizer = torch.optim.Rprop([torch.nn.Parameter(weights[1])], lr=0.5, foreach=False)
    optimizer.param_groups[0]["params"][0].grad = given
    optimizer.step()
    assert torch.equal(weights[0], weights[1])
    assert weights[0].abs().min() > 0
