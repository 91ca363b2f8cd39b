"""How a rank goes through rounds with the others. Neither they nor its engine are real here."""

import logging
from array import array

import pytest
from smartswap import agreement
from smartswap.agreement import Agreement

LATER, NEXT_STEP, AT_ONCE, TIMES = range(4)


class Adapter:
    """An engine that says what it was told, and asks for the rounds it is given."""

    def __init__(self, *rounds):
        self.calls = []
        self.rounds = list(rounds)

    def step(self):
        self.calls.append("step")

    def share(self, role):
        self.calls.append(f"share {role}")

    def figures(self):
        self.calls.append("figures")
        return [1.0, 2.0]

    def agree(self, worst):
        assert worst == [10.0, 20.0], "without what is told of a trial"
        self.calls.append("agree")
        following = self.rounds.pop(0)
        return following, 1000 if following == TIMES else 0

    def times(self, count):
        self.calls.append("times")
        return [float(number) for number in range(count)]

    def agree_times(self, times):
        assert times == [10.0 * number for number in range(1000)]
        self.calls.append("agree_times")
        return self.rounds.pop(0)


class Work:
    """An all-reduce with ranks that measure ten times as much, once it is waited for."""

    def __init__(self, message, failure):
        self.message = message
        self.failure = failure

    def wait(self):
        if self.failure is not None:
            raise self.failure
        for place in range(2, len(self.message)):
            self.message[place] *= 10


class Group:
    """A process group whose all-reduces may fail from some number on."""

    def __init__(self):
        self.failure = None
        self.lengths = set()

    def allreduce(self, tensors, options):
        del options
        (tensor,) = tensors
        self.lengths.add(len(tensor))
        return Work(tensor, self.failure)


def made(*rounds):
    """A rank that has met the others."""
    adapter = Adapter(*rounds)
    rank = Agreement(adapter, 30.0)
    peers = agreement._Peers.__new__(agreement._Peers)
    peers.count, peers._group, peers._options, peers._n_sent = 2, Group(), None, 0
    rank._peers = peers
    # The script's process group is there.
    rank._meet_or_part = lambda: None
    return rank, adapter, peers._group


def steps(rank, adapter, count=1):
    """What the engine was asked for in so many steps."""
    adapter.calls.clear()
    for _ in range(count):
        rank.end_step()
    return adapter.calls


def test_while_ranks_search_each_step_waits_for_its_round():
    rank, adapter, group = made(NEXT_STEP, NEXT_STEP)
    assert steps(rank, adapter, 2) == ["step", "figures", "agree"] * 2
    assert len(group.lengths) == 1


def test_when_all_are_stable_a_round_is_taken_in_one_step_later():
    rank, adapter, _ = made(LATER, LATER, LATER, NEXT_STEP, LATER)
    assert steps(rank, adapter) == ["step", "figures", "agree"]
    assert steps(rank, adapter) == ["step", "figures"]
    assert steps(rank, adapter, 2) == ["step", "agree", "figures"] * 2
    # The next one began to search.
    assert steps(rank, adapter) == ["step", "agree", "figures", "agree"]


def test_steps_that_wait_are_judged_in_rounds_at_once():
    rank, adapter, _ = made(AT_ONCE, AT_ONCE, NEXT_STEP)
    assert steps(rank, adapter) == ["step", *["figures", "agree"] * 3]


def test_times_go_in_messages_that_are_all_as_long():
    rank, adapter, group = made(TIMES, NEXT_STEP)
    assert steps(rank, adapter) == ["step", "figures", "agree", "times", "agree_times"]
    assert len(group.lengths) == 1


def test_a_rank_that_loses_the_others_says_so_once_and_trains_on(caplog):
    rank, adapter, group = made(NEXT_STEP)
    assert rank.n_ranks == 2
    steps(rank, adapter)
    group.failure = RuntimeError("[pair.cc:1] Connection closed by peer\nand a trace")
    with caplog.at_level(logging.WARNING, logger="smartswap"):
        assert steps(rank, adapter, 3) == ["step", "figures", "share 0", "step", "step"]
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith("alone from here on: another rank left")
    assert rank.n_ranks == 1


def test_an_interrupt_comes_out():
    rank, adapter, group = made()
    group.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        rank.end_step()
    assert steps(rank, adapter) == ["step"]


def test_leaving_waits_for_the_running_round_and_says_nothing(caplog):
    rank, adapter, group = made(LATER)
    steps(rank, adapter)
    group.failure = RuntimeError("too late")
    assert steps(rank, adapter) == ["step", "figures"]
    rank.leave()
    assert adapter.calls[-1] == "share 0"
    assert steps(rank, adapter) == ["step"]
    assert not caplog.messages


def test_ranks_that_lost_count_are_found_out():
    sent = agreement._Sent(Work([], None), array("d", [3.0, -2.0, 5.0]), 1)
    sent.work.message = []
    with pytest.raises(RuntimeError, match="out of step"):
        sent.largest()
    assert agreement._Sent(Work([], None), array("d", [3.0, -3.0, 5.0]), 1).largest() == [5.0]
