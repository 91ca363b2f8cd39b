"""Which tensors fill a budget best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

__all__ = ["choose", "stage_bytes"]

# The search counts in the greatest common divisor of the sizes, unless that makes more cells.
_CELLS_MAX = 1 << 17
GIB = 1 << 30


def stage_bytes(
    budget: str | float | Sequence[str | float], stage: int = 0, n_stages: int = 1
) -> int | None:
    """The budget of one pipeline stage in bytes; None for all.

    One value holds for every stage; otherwise there is one for each. A value is "all" or GiB.
    """
    values = [budget] if isinstance(budget, (str, int, float)) else list(budget)
    if len(values) not in (1, n_stages):
        raise ValueError(
            f"virtual optimizer: {len(values)} values for {n_stages} pipeline stages; "
            "give one value, or one for each stage"
        )
    if not 0 <= stage < n_stages:
        raise ValueError(f"virtual optimizer: there is no stage {stage} among {n_stages}")
    parsed = [_parse(value) for value in values]
    return parsed[stage if len(parsed) > 1 else 0]


def _parse(value: str | float) -> int | None:
    if value == "all":
        return None
    try:
        gib = float(value)
    except (TypeError, ValueError):
        gib = -1.0
    if not 0 <= gib < 1 << 20:
        raise ValueError(
            f"virtual optimizer: {value!r} is neither 'all' nor a number of GiB such as 2.5"
        )
    return int(gib * GIB)


def choose(sizes: Sequence[int], budget_bytes: int | None) -> list[int]:
    """Places of the tensors that fill `budget_bytes` best without going above it.

    The sum is the largest that fits, if the sizes have a common divisor that is not much smaller
    than the budget; otherwise it is close. None as budget takes all.
    """
    if budget_bytes is None or sum(sizes) <= budget_bytes:
        return list(range(len(sizes)))
    order = sorted(range(len(sizes)), key=lambda place: (-sizes[place], place))
    searched = _search([sizes[place] for place in order], budget_bytes)
    candidates = [_fill(order, sizes, budget_bytes, start) for start in (set(), searched)]
    return max(candidates, key=lambda places: sum(sizes[place] for place in places))


def _fill(
    order: Sequence[int], sizes: Sequence[int], budget_bytes: int, start: set[int]
) -> list[int]:
    """Adds the largest that fits, again and again, to the tensors at the ranks in `start`."""
    taken = {order[rank] for rank in start}
    left_bytes = budget_bytes - sum(sizes[place] for place in taken)
    for place in order:
        if place not in taken and sizes[place] <= left_bytes:
            taken.add(place)
            left_bytes -= sizes[place]
    return sorted(taken)


def _search(sizes: Sequence[int], budget_bytes: int) -> set[int]:
    """Ranks of a subset whose sizes, rounded up to quanta, have the largest sum within the budget.

    `sizes` fall. Bit `n` of a row says that `n` quanta can be reached with the groups so far.
    """
    fitting = [size for size in sizes if 0 < size <= budget_bytes]
    if not fitting:
        return set()
    quantum = max(math.gcd(*fitting), -(-budget_bytes // _CELLS_MAX))
    cells = budget_bytes // quantum
    mask = (1 << (cells + 1)) - 1
    counts = Counter(fitting)
    bundles: list[tuple[int, int, int]] = []
    for size, count in counts.items():
        bundle = 1
        while count > 0:
            taken = min(bundle, count)
            bundles.append((size, taken, -(-size // quantum) * taken))
            count -= taken
            bundle *= 2
    rows = [1]
    for _, _, weight in bundles:
        rows.append((rows[-1] | rows[-1] << weight) & mask)
    cell = rows[-1].bit_length() - 1
    wanted: Counter[int] = Counter()
    for (size, taken, weight), before in zip(reversed(bundles), reversed(rows[:-1]), strict=True):
        # Bundles of larger sizes come first, so those of smaller ones are spared where possible.
        if not before >> cell & 1:
            cell -= weight
            wanted[size] += taken
    ranks = set()
    for rank, size in enumerate(sizes):
        if wanted[size] > 0:
            wanted[size] -= 1
            ranks.add(rank)
    return ranks
