"""Where training steps end."""

import gc

import pytest
import torch
from smartswap.loop import StepEnds


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


def test_nothing_is_left_behind():
    ends = Ends()
    scaler_step = torch.amp.GradScaler._maybe_opt_step
    ends.ends.install()
    ends.ends.install()
    ends.ends.remove()
    ends.ends.remove()
    sgd().step()
    assert ends.count == 0
    assert torch.amp.GradScaler._maybe_opt_step is scaler_step
