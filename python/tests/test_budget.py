"""What fills a budget, against the best of all subsets."""

import itertools
import random

import pytest
from smartswap.budget import choose, stage_bytes

GIB = 1 << 30


def best(sizes, budget):
    sums = (sum(part) for n in range(len(sizes) + 1) for part in itertools.combinations(sizes, n))
    return max(total for total in sums if total <= budget)


def test_small_cases_are_filled_as_well_as_possible():
    chance = random.Random(3)
    n_better = 0
    for _ in range(400):
        sizes = [chance.choice([3, 5, 7, 8, 12, 20, 31]) * 512 for _ in range(chance.randint(1, 9))]
        budget = chance.randint(0, sum(sizes) + 1000)
        places = choose(sizes, budget)
        assert len(set(places)) == len(places)
        assert sum(sizes[place] for place in places) == best(sizes, budget)
        left, greedy = budget, 0
        for size in sorted(sizes, reverse=True):
            if size <= left:
                left, greedy = left - size, greedy + size
        n_better += greedy < best(sizes, budget)
    # Largest first alone would not have done.
    assert n_better > 20


def test_large_cases_come_close():
    chance = random.Random(4)
    for _ in range(10):
        sizes = [chance.randint(1, 3 << 27) for _ in range(600)]
        budget = chance.randint(1 << 30, sum(sizes))
        filled = sum(sizes[place] for place in choose(sizes, budget))
        assert budget - (budget >> 10) <= filled <= budget


def test_all_and_nothing():
    assert choose([5, 6], None) == [0, 1]
    assert choose([5, 6], 0) == []
    assert choose([], 10) == []
    assert choose([0, 5], 4) == [0]


def test_stages():
    assert stage_bytes("all") is None
    assert stage_bytes(2.0, 3, 4) == 2 * GIB
    assert [stage_bytes([6, 5, 4, 3], stage, 4) for stage in range(4)] == [
        6 * GIB,
        5 * GIB,
        4 * GIB,
        3 * GIB,
    ]
    assert stage_bytes(["all", 2], 0, 2) is None
    assert stage_bytes("1.5") == 3 * GIB // 2
    with pytest.raises(ValueError, match="4 values for 2 pipeline stages"):
        stage_bytes([6, 5, 4, 3], 0, 2)
    for bad in ("most", -1, float("nan"), None):
        with pytest.raises(ValueError, match="virtual optimizer"):
            stage_bytes([bad])
    with pytest.raises(ValueError, match="no stage 2"):
        stage_bytes("all", 2, 2)
