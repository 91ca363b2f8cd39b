"""Where training steps end."""

import gc

import pytest
import torch
from smartswap.loop import StepEnds
from torch.utils.checkpoint import checkpoint


class Ends:
    """Counts the ends of steps."""

    def __init__(self):
        self.count = 0
        self.ends = StepEnds(self.count_one)

    def count_one(self):
        self.count += 1


@pytest.fixture
def counted():
    ends = Ends()
    ends.ends.install()
    yield ends
    ends.ends.remove()


def sgd():
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    return torch.optim.SGD([param], lr=0.1)


def test_each_step_of_one_optimizer_ends_a_step(counted):
    optimizer = sgd()
    for _ in range(5):
        optimizer.step()
    assert counted.count == 5


def test_the_last_of_several_optimizers_ends_the_step(counted):
    one, two, three = sgd(), sgd(), sgd()
    for optimizer in (one, two, three):
        optimizer.step()
    counted.count = 0
    for _ in range(5):
        for optimizer in (one, two, three):
            optimizer.step()
    assert counted.count == 5


def test_several_steps_of_a_critic_belong_to_one_step(counted):
    critic, generator = sgd(), sgd()
    critic.step()
    generator.step()
    counted.count = 0
    for _ in range(4):
        for _ in range(5):
            critic.step()
        generator.step()
    assert counted.count == 4


def test_another_takes_over_when_the_last_stops_or_dies(counted):
    one, two = sgd(), sgd()
    one.step()
    two.step()
    counted.count = 0
    for _ in range(40):
        one.step()
    assert 20 <= counted.count <= 30
    two.step()
    del two
    gc.collect()
    counted.count = 0
    one.step()
    one.step()
    assert counted.count == 2


def test_a_step_that_the_scaler_leaves_out_ends_too(counted):
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([param], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for value in (1.0, float("inf"), 1.0):
        param.grad = torch.full((3,), value)
        scaler.scale(torch.ones(1))
        scaler.step(optimizer)
        scaler.update()
    assert counted.count == 3
    assert torch.isfinite(param).all()


def test_a_closure_that_runs_often_is_one_step(counted):
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.LBFGS([param], max_iter=5)
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = (param**4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert calls > 1
    assert counted.count == 1


def update(weight):
    with torch.no_grad():
        weight -= 0.1 * weight.grad


def forget(weight):
    weight.grad = None


def zero(weight):
    weight.grad.zero_()


def train_by_hand(weight, passes, *changes):
    """Trains without an optimizer."""
    for _ in range(passes):
        (weight * 3.0).sum().backward()
        for change in changes:
            change(weight)


@pytest.mark.parametrize("changes", [[update], [forget], [zero], [update, forget]])
def test_backward_passes_end_steps_where_no_optimizer_does(counted, caplog, changes):
    weight = torch.nn.Parameter(torch.ones(3))
    # The change is seen when the next pass begins.
    train_by_hand(weight, 8, *changes)
    assert (counted.count, caplog.messages) == (0, [])
    train_by_hand(weight, 10, *changes)
    assert counted.count == 10
    assert ["no optimizer of torch.optim has stepped" in said for said in caplog.messages] == [True]
    # One that comes late takes over for good.
    optimizer = sgd()
    optimizer.step()
    train_by_hand(weight, 20, *changes)
    assert counted.count == 11


def test_gradients_of_many_batches_add_up_in_one_step(counted, caplog):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    train_by_hand(weight, 255)
    optimizer.step()
    assert (counted.count, caplog.messages) == (1, [])


def test_weights_that_change_where_nobody_sees_it_are_waited_for_longer(counted):
    weight = torch.nn.Parameter(torch.ones(3))

    def change(weight):
        weight.data.sub_(weight.grad)
        weight.grad = None

    weight.register_post_accumulate_grad_hook(change)
    train_by_hand(weight, 255)
    assert counted.count == 0
    train_by_hand(weight, 10)
    assert counted.count == 10


def test_a_pass_within_a_pass_ends_no_step(counted):
    weight = torch.nn.Parameter(torch.ones(3))

    def train(passes):
        for _ in range(passes):
            checkpoint(torch.sin, weight, use_reentrant=True).sum().backward()
            update(weight)

    train(20)
    assert counted.count == 12
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    train(1)
    assert counted.count == 13


class Named(torch.autograd.Function):
    """Keeps what it likes under the name that PyTorch's own nodes have for a leaf."""

    @staticmethod
    def forward(ctx, tensor):
        ctx.variable = "a name"
        return tensor * 3.0

    @staticmethod
    def backward(ctx, grad):
        return grad * 3.0


def test_functions_of_a_script_are_no_leaves(counted):
    weight = torch.nn.Parameter(torch.ones(3))
    for _ in range(20):
        Named.apply(weight).sum().backward()
        update(weight)
    assert counted.count == 12


def test_passes_begin_with_whatever_pytorch_takes(counted):
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    losses = [(weight * 3.0).sum() for weight in weights]
    torch.autograd.backward(loss for loss in losses[:2])
    torch.autograd.backward(torch.autograd.graph.get_gradient_edge(losses[2]))
    torch.autograd.backward(tensors=())
    assert all(torch.equal(weight.grad, torch.full((3,), 3.0)) for weight in weights)


def test_optimizers_that_step_in_the_backward_pass_end_one_step(counted):
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    for weight in model.parameters():
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.register_post_accumulate_grad_hook(lambda _, by=optimizer: by.step())
    model(torch.ones(2, 4)).sum().backward()
    counted.count = 0
    for _ in range(40):
        model(torch.ones(2, 4)).sum().backward()
    assert counted.count == 40


def test_nothing_is_left_behind():
    ends = Ends()
    backward = torch.autograd.backward
    scaler_step = torch.amp.GradScaler._maybe_opt_step
    ends.ends.install()
    ends.ends.install()
    ends.ends.remove()
    ends.ends.remove()
    sgd().step()
    train_by_hand(torch.nn.Parameter(torch.ones(3)), 20, forget)
    assert ends.count == 0
    assert torch.autograd.backward is backward
    assert torch.amp.GradScaler._maybe_opt_step is scaler_step
