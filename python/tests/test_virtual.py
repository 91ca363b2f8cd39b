"""The virtual optimizer over memory that only notes what was asked of it."""

import copy
import gc
import io
import weakref

import pytest
import torch
from smartswap.errors import UnsupportedOptimizerError
from smartswap.state_plan import predict_sizes
from smartswap.virtual import VirtualState
from torch.overrides import TorchFunctionMode

SHAPES = [(16, 8), (8,), (4, 6, 2, 2), (1,), (30, 30)]
KINDS = [
    ("Adadelta", {}, 2),
    ("Adafactor", {}, None),
    ("Adagrad", {}, 1),
    ("Adam", {}, 2),
    ("Adam", {"amsgrad": True, "foreach": True}, 3),
    ("Adam", {"fused": True, "amsgrad": True}, 3),
    ("AdamW", {"foreach": True}, 2),
    ("Adamax", {}, 2),
    ("ASGD", {"foreach": True}, 1),
    ("NAdam", {}, 2),
    ("RAdam", {"foreach": True}, 2),
    ("RMSprop", {"momentum": 0.9, "centered": True}, 3),
    ("RMSprop", {}, 1),
    ("Rprop", {"foreach": True}, 2),
    ("SGD", {"momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}, 1),
    ("SGD", {"momentum": 0.9, "foreach": True, "nesterov": True}, 1),
    ("SGD", {"momentum": 0.9, "fused": True}, 1),
    ("SGD", {}, 0),
]


class Host:
    """Memory that stands for host memory, and what was given out of it."""

    def __init__(self):
        self.given = []

    def allocate(self, sizes, dtype, device):
        tensor = torch.full(sizes, float("nan"), dtype=dtype, device=device)
        self.given.append(tensor.untyped_storage())
        return tensor

    def has(self, tensor):
        address = tensor.untyped_storage().data_ptr()
        return any(storage.data_ptr() == address for storage in self.given)


def parameters():
    generator = torch.Generator().manual_seed(5)
    made = [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in SHAPES]
    made[2].data = made[2].data.to(memory_format=torch.channels_last)
    return made


def optimizer_of(name, options):
    return getattr(torch.optim, name)(parameters(), lr=1e-2, **options)


def params_of(optimizer):
    return [param for group in optimizer.param_groups for param in group["params"]]


def run(optimizer, n_steps=3, seed=6):
    generator = torch.Generator().manual_seed(seed)
    for step in range(n_steps):
        for place, param in enumerate(params_of(optimizer)):
            grad = torch.randn(param.shape, generator=generator).clone()
            # The last joins late, which PyTorch's fused SGD does not take.
            may_be_late = not (
                isinstance(optimizer, torch.optim.SGD) and optimizer.defaults["fused"]
            )
            is_late = may_be_late and step == 0 and place == len(SHAPES) - 1
            param.grad = None if is_late else torch.empty_like(param).copy_(grad)
        optimizer.step()


def moments(optimizer):
    return {
        (place, key): value
        for place, param in enumerate(params_of(optimizer))
        for key, value in optimizer.state[param].items()
        if isinstance(value, torch.Tensor) and value.dim() > 0
    }


def assert_same_run(one, other):
    for left, right in zip(params_of(one), params_of(other), strict=True):
        assert torch.equal(left, right)
    left, right = moments(one), moments(other)
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert torch.equal(value, right[key]), key
        assert value.stride() == right[key].stride(), key


def virtual(optimizer, host, budget_bytes=None):
    state = VirtualState(optimizer, budget_bytes, host.allocate, host.has)
    state.install()
    return state


class Makers(TorchFunctionMode):
    """Notes sizes of at least `least` that are made beside host memory."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.zeros_like, torch.full_like, torch.empty_like, torch.Tensor.new_zeros):
            self.made.append(result)
        return result


@pytest.mark.parametrize(("name", "options", "n_per_param"), KINDS, ids=str)
def test_all_state_is_made_in_host_memory(name, options, n_per_param):
    plain, host = optimizer_of(name, options), Host()
    ours = optimizer_of(name, options)
    state = virtual(ours, host)
    run(plain)
    run(ours)
    assert_same_run(plain, ours)
    made = moments(ours)
    if n_per_param is not None:
        assert len(made) == n_per_param * len(SHAPES)
    assert all(host.has(value) for value in made.values())
    total = sum(value.nbytes for value in made.values())
    assert state.plan.placed_bytes == total == sum(state.plan.sizes)
    assert len(host.given) == len(made)


@pytest.mark.parametrize(("name", "options", "n_per_param"), KINDS[:-1], ids=str)
def test_budget_is_kept_and_filled(name, options, n_per_param):
    plain = optimizer_of(name, options)
    for share in (0.3, 0.7):
        ours, host = optimizer_of(name, options), Host()
        budget = int(sum(predict_sizes(ours)) * share)
        state = virtual(ours, host, budget)
        run(ours)
        placed = sum(value.nbytes for value in moments(ours).values() if host.has(value))
        assert placed == state.plan.planned_bytes <= budget
        smallest = min(v.nbytes for v in moments(ours).values() if not host.has(v))
        assert budget - placed < smallest
    run(plain)
    assert_same_run(plain, ours)


@pytest.mark.parametrize("name", ["Adam", "SGD", "Rprop", "Adafactor"])
def test_saved_state_loads_into_host_memory(name):
    options = {"momentum": 0.9} if name == "SGD" else {}
    plain, ours, host = optimizer_of(name, options), optimizer_of(name, options), Host()
    virtual(ours, host)
    run(plain)
    run(ours)
    file = io.BytesIO()
    torch.save({"optimizer": ours.state_dict(), "params": params_of(ours)}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)

    resumed, host = optimizer_of(name, options), Host()
    state = virtual(resumed, host)
    for param, value in zip(params_of(resumed), saved["params"], strict=True):
        param.data.copy_(value)
    with Makers() as makers:
        resumed.load_state_dict(saved["optimizer"])
    assert not [made for made in makers.made if not made.is_meta and not host.has(made)]
    assert all(host.has(value) for value in moments(resumed).values())
    assert state.plan.placed_bytes == sum(state.plan.sizes)
    run(plain, seed=7)
    run(resumed, seed=7)
    assert_same_run(plain, resumed)


def test_loading_own_state_takes_no_more_memory():
    ours, host = optimizer_of("Adam", {}), Host()
    virtual(ours, host, 6000)
    run(ours)
    before = len(host.given)
    placed = {key: host.has(value) for key, value in moments(ours).items()}
    assert 0 < sum(placed.values()) < len(placed)
    ours.load_state_dict(ours.state_dict())
    assert {key: host.has(value) for key, value in moments(ours).items()} == placed
    assert len(host.given) == before


def test_loading_lower_precision_gives_the_dtype_of_the_parameters():
    plain, ours, host = optimizer_of("Adam", {}), optimizer_of("Adam", {}), Host()
    run(plain)
    saved = copy.deepcopy(plain.state_dict())
    for state in saved["state"].values():
        state["exp_avg"] = state["exp_avg"].to(torch.bfloat16)
    virtual(ours, host)
    ours.load_state_dict(saved)
    plain.load_state_dict(saved)
    for key, value in moments(plain).items():
        assert torch.equal(value, moments(ours)[key])
        assert moments(ours)[key].dtype == torch.float32
        assert host.has(moments(ours)[key])


def test_a_wrong_state_is_refused_as_ever():
    ours = optimizer_of("Adam", {})
    virtual(ours, Host())
    with pytest.raises(ValueError, match="doesn't match the size"):
        ours.load_state_dict(torch.optim.Adam([torch.ones(2, requires_grad=True)]).state_dict())


def test_state_that_exists_moves():
    plain, ours, host = optimizer_of("Adam", {}), optimizer_of("Adam", {}), Host()
    run(plain)
    run(ours)
    virtual(ours, host)
    assert_same_run(plain, ours)
    assert all(host.has(value) for value in moments(ours).values())


def test_schedulers_and_closures_work():
    plain, ours, host = (optimizer_of("SGD", {"momentum": 0.9}) for _ in range(2)), None, Host()
    results = []
    for optimizer in plain:
        if results:
            virtual(optimizer, host)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

        def closure(optimizer=optimizer):
            optimizer.zero_grad()
            loss = sum((param.clone() ** 2).sum() for param in params_of(optimizer))
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
            scheduler.step()
        results.append(optimizer)
    assert_same_run(*results)
    ours = results[1]
    assert all(host.has(value) for value in moments(ours).values())
    assert len(host.given) == len(moments(ours))


def test_master_weights_come_on_request():
    plain, ours, host = optimizer_of("Adam", {}), optimizer_of("Adam", {}), Host()
    state = VirtualState(ours, None, host.allocate, host.has)
    state.add_master_weights()
    state.install()
    run(plain)
    run(ours)
    assert_same_run(plain, ours)
    assert all(host.has(param) for param in params_of(ours))
    saved = ours.state_dict()
    ours.load_state_dict(saved)
    assert state.plan.placed_bytes == sum(state.plan.sizes)


def test_other_optimizers():
    class Own(torch.optim.Optimizer):
        """Makes its state in its step."""

        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for param in group["params"]:
                    state = self.state[param]
                    if not state:
                        state["sum"] = torch.zeros_like(param)
                    state["sum"].add_(param.grad)
                    param.sub_(state["sum"] * group["lr"])

    plain, ours, host = Own(parameters()), Own(parameters()), Host()
    virtual(ours, host)
    for optimizer in (plain, ours):
        for _ in range(3):
            for param in params_of(optimizer):
                param.grad = param.detach() * 0.1
            optimizer.step()
    assert_same_run(plain, ours)
    assert len(moments(ours)) == len(SHAPES)
    assert all(host.has(value) for value in moments(ours).values())
    with pytest.raises(UnsupportedOptimizerError, match="LBFGS"):
        predict_sizes(torch.optim.LBFGS(parameters()))
    with pytest.raises(UnsupportedOptimizerError, match="SparseAdam"):
        predict_sizes(torch.optim.SparseAdam(parameters()))


def test_the_optimizer_dies_with_its_last_name():
    optimizer = optimizer_of("SGD", {"momentum": 0.9})
    virtual(optimizer, Host())
    run(optimizer)
    watch = weakref.ref(optimizer)
    gc.disable()
    try:
        del optimizer
        assert watch() is None
    finally:
        gc.enable()


def test_prediction_makes_nothing_on_the_device():
    optimizer = optimizer_of("Adam", {"fused": True, "amsgrad": True})
    with Makers() as makers:
        sizes = predict_sizes(optimizer)
    assert sizes == [param.nbytes for param in params_of(optimizer) for _ in range(3)]
    assert makers.made
    assert all(made.is_meta for made in makers.made)
    assert not optimizer.state
