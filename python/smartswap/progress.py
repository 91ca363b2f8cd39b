"""What is told on stderr while a training runs, and at its end."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import terminal
from .deferred import Trial
from .sizes import format_size

__all__ = ["Progress", "run_summary", "tell_news"]

_log = logging.getLogger("smartswap")
# So many Stable steps say what a cap costs.
_STEPS_TO_TELL = 4
# A step that takes so many times its own time is worth a warning.
_COSTLY_RATIO = 2.0
# From here on it is worth a second to find out what would cost less; of larger steps more. Training
# goes on meanwhile.
_NOTABLE_RATIO = 1.05
_OPS_MAX = 20_000
# Another way is told of if it adds at most this part.
_LESS = 0.9
_MORE = "smartswap.advise() tells what other caps cost"


class Progress:
    """Tells, after each step, what is new.

    trial: whether the optimizer's updates should wait, which is found out before the cost is told.
    """

    def __init__(self, trial: Trial | None) -> None:
        self._trial = trial
        self._has_told_cost = False
        self._telling: threading.Thread | None = None
        # So many steps had reported when the cost was last asked for.
        self._asked_at = -1
        # The plans that were tried, in order, and those of steps that have not reported yet.
        self._plans: list[int] = []
        self._plan_of: dict[int, int] = {}
        self._told_step = 0
        self._has_failed = False

    def tell(
        self, adapter: Any, explain: Callable[[], dict[str, Any]], is_first_rank: bool
    ) -> None:
        """Call it after each step. An error ends the telling, and no training."""
        if self._has_failed:
            return
        try:
            self._tell(adapter, explain, is_first_rank)
        except Exception:
            self._has_failed = True
            _log.warning(
                "an error ends the lines about this training, which goes on; please report it",
                exc_info=True,
            )

    def _tell(
        self, adapter: Any, explain: Callable[[], dict[str, Any]], is_first_rank: bool
    ) -> None:
        tell_news(adapter)
        if self._has_told_cost:
            return
        now = adapter.stats()
        n_stable = now["steps_by_stage"]["Stable"]
        if n_stable == 0:
            self._tell_step(now, is_first_rank)
        else:
            terminal.clear()
        if self._trial is not None:
            if not self._trial.is_over:
                return
            if self._trial.outcome:
                _log.info("%s", self._trial.outcome)
            self._trial = None
        # What nobody watches reports nothing more.
        if n_stable >= _STEPS_TO_TELL and self._asked_at != now["reported_steps"]:
            self._asked_at = now["reported_steps"]
            self._has_told_cost = self._tell_cost(
                explain(), lambda: json.loads(adapter.advise()), is_first_rank
            )

    def close(self) -> None:
        """Waits until all is told. Call it before the engine closes."""
        if self._telling is not None:
            self._telling.join()

    def _tell_cost(
        self, explained: dict[str, Any], advise: Callable[[], dict[str, Any]], is_first_rank: bool
    ) -> bool:
        """Logs what the cap costs: as a warning if that is much. Whether all is known that is to
        be."""
        # What was only met among the steps of another family has no levels.
        if families := [family for family in explained["families"] if family["levels"]]:
            return _tell_cost_of_family(families[0], explained["limit_bytes"], is_first_rank)
        cost = _cost(explained)
        if cost is None:
            return True
        level = logging.WARNING if cost.least >= _COSTLY_RATIO and is_first_rank else logging.INFO
        if not _log.isEnabledFor(level):
            return True
        if cost.least < _NOTABLE_RATIO or (explained["op_count"] or 0) > _OPS_MAX:
            _log.log(level, "%s; %s", cost.text, _MORE)
            return True

        def tell() -> None:
            _log.log(level, "%s; %s%s", cost.text, _cheaper_ways(advise(), cost.least), _MORE)

        # An interpreter that ends waits for it.
        self._telling = threading.Thread(target=tell, name="smartswap advise")
        self._telling.start()
        return True

    def _tell_step(self, now: dict[str, Any], is_first_rank: bool) -> None:
        """Tells of a step before the first Stable one: in the log, or else on a terminal. A device
        is behind its host, so the step that reports may have ended a while ago."""
        step, is_new = now["reported_steps"], now["reported_steps"] > self._told_step
        plan = self._plan_of.get(step, now["plan"])
        costs = _costs(now) if plan else ""
        self._plan_of[now["steps"] + 1] = now["plan"]
        if not _log.isEnabledFor(logging.INFO):
            if is_first_rank:
                costs = costs if plan == now["plan"] else ""
                terminal.show(f"step {now['steps']}, {self._what_it_does(now, now['plan'])}{costs}")
        elif is_new:
            took_ms = now["last_step_us"] / 1e3
            does = self._what_it_does(now, plan)
            _log.info("step %d, %s: %.1f ms%s", step, does, took_ms, costs)
        self._told_step = step
        self._plan_of = {at: plan for at, plan in self._plan_of.items() if at >= step}

    def _what_it_does(self, now: dict[str, Any], plan: int) -> str:
        if plan and plan not in self._plans:
            self._plans.append(plan)
        number = self._plans.index(plan) + 1 if plan else 0
        # A step of another kind has a search of its own.
        of = f" of {now['search_steps']}" if number <= now["search_steps"] else ""
        # The best so far is taken up again, or kinds of steps take turns.
        verb = "trying" if number == len(self._plans) else "under"
        return f"{verb} plan {number}{of}" if plan else "finding out what it needs"


def _costs(now: dict[str, Any]) -> str:
    """Of a step whose operators are as fast as each was; the first ones may all have been slow."""
    ratio = now["last_step_us"] / now["unlimited_us"] if now["unlimited_us"] else 0.0
    return f", {ratio:.2f}x" if ratio >= 1 else ""


def tell_news(adapter: Any) -> None:
    """Logs what the search for a plan did since the last time."""
    if _log.isEnabledFor(logging.DEBUG):
        for line in adapter.take_news().splitlines():
            _log.debug("%s", line)


class _Cost(NamedTuple):
    """What a cap costs: at least so many times a step with memory for all, and in words."""

    least: float
    text: str


def _cost(explained: dict[str, Any]) -> _Cost | None:
    """What the cap costs. None if the step was not measured, or follows no plan."""
    measured, predicted = explained["measured"], explained["prediction"]
    if measured is None or predicted is None:
        return None
    unlimited_us = max(predicted["unlimited_us"], 1e-9)
    # The plan leaves out what a busy machine adds; the measured step has it, and is compared with
    # operators as fast as each ever was. The truth lies between.
    least, most = _in_order(one["step_us"] / unlimited_us for one in (measured, predicted))
    out, back = (format_size(predicted[f"swapped_{way}_bytes"]) for way in ("out", "in"))
    return _Cost(
        least,
        f"the cap of {format_size(explained['limit_bytes'])} costs {least:.2f}x to {most:.2f}x: "
        f"{measured['step_us'] / 1e3:.1f} ms a step, {predicted['step_us'] / 1e3:.1f} predicted, "
        f"{unlimited_us / 1e3:.1f} with memory for all; {out} leave and {back} come back, and "
        f"operators run again for {predicted['recomputed_us'] / 1e3:.1f} ms",
    )


def _in_order(ratios: Iterable[float]) -> list[float]:
    """What a cap costs by several figures, the least first. No cap makes a step shorter."""
    return sorted(max(1.0, ratio) for ratio in ratios)


def _cheaper_ways(told: dict[str, Any], ratio: float) -> str:
    """The least cap that would add half as much, and more micro-batches if they would add less.

    ratio: what the cap of now costs. What is told was planned with little effort: it is taken as
    the part of that which another way would cost.
    """
    def added(step_us: float, unlimited_us: float) -> float:
        return step_us / max(unlimited_us, 1e-9) - 1

    def cap_added(cap: dict[str, Any]) -> float:
        return added(cap["step_us"], told["unlimited_us"])

    own = [cap_added(cap) for cap in told["caps"] if cap["limit_bytes"] == told["limit_bytes"]]
    if not own or own[0] <= 0:
        return ""
    ways = [
        (format_size(cap["limit_bytes"]), cap_added(cap))
        for cap in told["caps"] if cap_added(cap) <= own[0] / 2
    ][-1:]
    ways += [
        (f"{more['times']} times the accumulation", added(more["step_us"], more["unlimited_us"]))
        for more in told["accumulations"]
    ][-1:]
    shown = [
        f"about {1 + (ratio - 1) * way_added / own[0]:.2f}x with {way}"
        for way, way_added in ways if way_added <= _LESS * own[0]
    ]
    return "".join(f"{way}; " for way in shown)


def _tell_cost_of_family(family: dict[str, Any], limit_bytes: int, is_first_rank: bool) -> bool:
    """The same where steps differ in size: of those that begin under the lowest level's plan."""
    level = family["levels"][0]
    if level["predicted_ratio"] is None:
        return True
    if level["measured_ratio"] is None:
        return False
    least, most = _in_order((level["measured_ratio"], level["predicted_ratio"]))
    _log.log(
        logging.WARNING if least >= _COSTLY_RATIO and is_first_rank else logging.INFO,
        "no step is like another; the cap of %s costs %.2fx to %.2fx for those that are not larger "
        "than most; larger sizes that have a plan: %d",
        format_size(limit_bytes), least, most,
        sum(one["plan_actions"] is not None for one in family["levels"][1:]),
    )
    return True


def run_summary(now: dict[str, Any], *, has_failed: bool = False) -> str:
    """One line about the run so far, from `stats()`, and whether an error ended it."""
    asked, held = (format_size(now[f"{name}_bytes"]["peak"]) for name in ("requested", "reserved"))
    out, back = (format_size(now[f"swapped_{way}_bytes"]) for way in ("out", "in"))
    return (
        f"{_steps(now, has_failed)}; tensors took {asked} at most, and {held} were held of a cap "
        f"of {format_size(now['limit_bytes'])}; moved out {out}, in {back}; "
        f"waited {now['stall_us'] / 1e6:.3f} s{_deferred(now['deferred_updates'])}"
    )


def _deferred(count: int) -> str:
    return f"; {count} parts of optimizer updates ran when they were used" if count else ""


def _steps(now: dict[str, Any], has_failed: bool) -> str:
    """The steps by stage, in words."""
    by_stage = [f"{count} {stage}" for stage, count in now["steps_by_stage"].items() if count]
    if not by_stage and has_failed:
        return "0 steps before an error"
    if not by_stage:
        return (
            "0 steps, so nothing was planned: no optimizer of torch.optim stepped; call "
            "smartswap.step() at the end of each step"
        )
    plural = "" if now["steps"] == 1 else "s"
    return f"{now['steps']} step{plural}: {', '.join(by_stage)}"
