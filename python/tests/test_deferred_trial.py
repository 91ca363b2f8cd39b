"""When updates begin to wait by themselves, and when they no longer do."""

import pytest
from smartswap.deferred import DeferredUpdates, Told, Trial

MS = 1e3


def explained(step_ms, wait_ms, predicted_ms=100.0, op="aten::_fused_adamw_"):
    waits = [{"op": "aten::mm", "wait_us": 50 * MS}, {"op": op, "wait_us": wait_ms * MS}]
    return {
        "measured": {"step_us": step_ms * MS, "steps": 4},
        "prediction": {"step_us": predicted_ms * MS, "waits": waits},
    }


class Rank:
    """A rank of a training, and what it would tell of its steps."""

    def __init__(self):
        self.updates = DeferredUpdates(None, 1 << 30, is_on=False)
        self.n_stable = 0
        self.explained = None
        self.planned = None
        self.trial = Trial(
            self.updates, lambda: self.n_stable, self.explain, lambda: self.planned
        )

    def explain(self):
        assert self.explained is not None, "nobody asks for an explanation yet"
        return self.explained


def consider(n_stable, *ranks):
    """Of each rank what it explains after as many Stable steps; whether the trials are over."""
    told = []
    for rank, explained in ranks:
        rank.n_stable, rank.explained = n_stable, explained
        told.append(rank.trial.tell())
    worst = Told(*map(max, zip(*told)))
    for rank, _ in ranks:
        rank.trial.hear(worst)
    over = {rank.trial.is_over for rank, _ in ranks}
    assert len(over) == 1, "all decide alike"
    return over.pop()


@pytest.fixture
def rank():
    return Rank()


def test_an_optimizer_that_hardly_waits_is_left_alone(rank):
    assert not consider(3, (rank, None))
    assert consider(4, (rank, explained(100, 4.9)))
    assert not rank.updates.is_on
    assert rank.trial.outcome == ""


def test_waits_of_other_operators_do_not_count(rank):
    assert consider(4, (rank, explained(100, 40, op="aten::embedding")))
    assert not rank.updates.is_on


def test_without_a_plan_there_is_nothing_to_try(rank):
    assert consider(4, (rank, {"measured": None, "prediction": None}))
    assert not rank.updates.is_on


@pytest.mark.parametrize(("after_ms", "stays"), [(97.9, True), (98.1, False), (140.0, False)])
def test_it_stays_if_steps_become_shorter(rank, after_ms, stays):
    assert not consider(4, (rank, explained(100, 5.1, op="aten::_foreach_addcdiv_")))
    assert rank.updates.is_on
    for n_stable in (4, 5, 7):
        assert not consider(n_stable, (rank, None))
    assert consider(8, (rank, explained(after_ms, 1)))
    assert rank.updates.is_on == stays
    words = "wait for their use" if stays else "do not wait"
    assert words in rank.trial.outcome
    assert f"{after_ms:.1f} ms a step if they do, 100.0 ms if not" in rank.trial.outcome


@pytest.mark.parametrize(("after_ms", "stays"), [(85, True), (89, False)])
def test_ranks_decide_by_the_slowest_of_them(after_ms, stays):
    slow, quick = Rank(), Rank()
    nothing = {"measured": None, "prediction": None}
    assert not consider(3, (slow, None), (quick, None))
    # One that has nothing to move waits for the one that has.
    assert not consider(4, (slow, explained(90, 20)), (quick, nothing))
    assert slow.updates.is_on and quick.updates.is_on
    assert not consider(8, (slow, explained(after_ms, 0)), (quick, nothing))
    assert consider(9, (slow, explained(after_ms, 0)), (quick, explained(10, 0)))
    assert slow.updates.is_on == quick.updates.is_on == stays


@pytest.mark.parametrize(("deferred_ms", "is_tried"), [(95.0, True), (95.1, False), (140.0, False)])
def test_nothing_is_tried_that_no_plan_promises(rank, deferred_ms, is_tried):
    rank.planned = {"recorded_us": 100 * MS, "deferred_us": deferred_ms * MS}
    assert consider(4, (rank, explained(100, 20))) != is_tried
    assert rank.updates.is_on == is_tried
    told = "" if is_tried else (
        "updates of the optimizer do not wait: as planned a step would take "
        f"{deferred_ms / 100:.2f} times as long if they did"
    )
    assert rank.trial.outcome == told


def test_ranks_try_what_is_promised_to_the_one_that_gains_least():
    for least_ms, is_tried in ((94, True), (96, False)):
        ranks = Rank(), Rank()
        for rank, deferred_ms in zip(ranks, (80, least_ms)):
            rank.planned = {"recorded_us": 100 * MS, "deferred_us": deferred_ms * MS}
        assert consider(4, *((rank, explained(100, 20)) for rank in ranks)) != is_tried
        assert [rank.updates.is_on for rank in ranks] == [is_tried] * 2
