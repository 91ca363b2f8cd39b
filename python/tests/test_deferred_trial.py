"""When updates begin to wait by themselves, and when they no longer do."""

import pytest
from smartswap.deferred import DeferredUpdates, Trial

MS = 1e3


def explained(step_ms, wait_ms, predicted_ms=100.0, op="aten::_fused_adamw_"):
    waits = [{"op": "aten::mm", "wait_us": 50 * MS}, {"op": op, "wait_us": wait_ms * MS}]
    return {
        "measured": {"step_us": step_ms * MS, "steps": 4},
        "prediction": {"step_us": predicted_ms * MS, "waits": waits},
    }


def never():
    raise AssertionError("nobody asks for an explanation yet")


@pytest.fixture
def updates():
    return DeferredUpdates(None, 1 << 30, is_on=False)


def test_an_optimizer_that_hardly_waits_is_left_alone(updates):
    trial = Trial(updates)
    assert not trial.consider(3, never)
    assert trial.consider(4, lambda: explained(100, 7.9))
    assert not updates.is_on
    assert trial.outcome == ""


def test_waits_of_other_operators_do_not_count(updates):
    assert Trial(updates).consider(4, lambda: explained(100, 40, op="aten::embedding"))
    assert not updates.is_on


def test_without_a_plan_there_is_nothing_to_try(updates):
    nothing = {"measured": None, "prediction": None}
    assert Trial(updates).consider(4, lambda: nothing)
    assert not updates.is_on


@pytest.mark.parametrize(("after_ms", "stays"), [(97.9, True), (98.1, False), (140.0, False)])
def test_it_stays_if_steps_become_shorter(updates, after_ms, stays):
    trial = Trial(updates)
    assert not trial.consider(4, lambda: explained(100, 8.1, op="aten::_foreach_addcdiv_"))
    assert updates.is_on
    for n_stable in (4, 5, 7):
        assert not trial.consider(n_stable, never)
    assert trial.consider(8, lambda: explained(after_ms, 1))
    assert updates.is_on == stays
    words = "wait for their use" if stays else "do not wait"
    assert words in trial.outcome
    assert f"{after_ms:.1f} ms a step if they do, 100.0 ms if not" in trial.outcome
