"""What the training's step would cost under other caps."""

from __future__ import annotations

import json
from dataclasses import dataclass

from . import engine
from .sizes import format_size

__all__ = ["AccumulationCost", "Advice", "CapCost", "advise"]

_BURDENS = {"none": "", "link": "copies", "recompute": "operators that run again"}


@dataclass(frozen=True)
class CapCost:
    """What a step takes under one cap, as planned with little effort and simulated."""

    memory: int
    """The cap, in bytes."""
    step_ms: float
    ratio: float
    """The step, of one with memory for everything."""
    out_bytes: int
    in_bytes: int
    recomputed_ms: float
    burden: str
    """What most of the added time goes to: "link", "recompute", or "none" below 1 %."""


@dataclass(frozen=True)
class AccumulationCost:
    """What a step takes under the cap of now if more micro-batches are accumulated in it."""

    times: int
    """How many times as many."""
    peak: int
    """What it needs when nothing leaves, in bytes."""
    step_ms: float
    ratio: float
    """The step, of one with memory for everything."""


@dataclass(frozen=True)
class Advice:
    """What the training's step costs under one cap after another, from the largest down.

    `str()` of it is a table. What the host adds on a busy machine is not in it: compare
    `measured_ms`, under the cap of now, with that cap's `step_ms`.
    """

    memory: int
    """The cap of now, in bytes."""
    peak: int
    """What the step needs when nothing leaves, in bytes."""
    unlimited_ms: float
    """The step with memory for everything, as its operators were measured."""
    measured_ms: float | None
    """The median Stable step, if there was one."""
    caps: tuple[CapCost, ...]
    accumulations: tuple[AccumulationCost, ...]
    """With 2 and 4 times as many micro-batches. None where the step fits, where it does not end
    with the update of an optimizer, and where it has more than some ten thousand operators."""

    def __str__(self) -> str:
        lines = [
            f"a step of {self.unlimited_ms:.1f} ms that needs {format_size(self.peak)}",
            f"{'cap':>12} {'step':>10} {'':>6} {'out, a step':>12} {'in, a step':>12}  waits for",
        ]
        for cap in self.caps:
            now = "  <- now" if cap.memory == self.memory else ""
            lines.append(
                f"{format_size(cap.memory):>12} {cap.step_ms:7.1f} ms {cap.ratio:5.2f}x "
                f"{format_size(cap.out_bytes):>12} {format_size(cap.in_bytes):>12}  "
                f"{_BURDENS[cap.burden]}{now}".rstrip()
            )
        least = self.caps[-1].memory
        lines.append(f"no plan was found for less than about {format_size(least)}")
        for more in self.accumulations:
            lines.append(
                f"with {more.times} times as many micro-batches, under the cap of now: "
                f"{more.step_ms:.1f} ms, {more.ratio:.2f}x"
            )
        if self.measured_ms is not None:
            lines.append(f"measured under the cap of now: {self.measured_ms:.1f} ms")
        return "\n".join(lines)


def advise() -> Advice:
    """Plans the last Stable step, or the last recorded one, for caps from all that it needs down,
    and for more micro-batches a step under the cap of now.

    It takes seconds for large steps, while other threads may train. Raises NotEnabledError, and
    RuntimeError before a step was recorded.
    """
    told = json.loads(engine.open_adapter().advise())
    measured_us = told["measured_us"]
    unlimited_us = told["unlimited_us"]
    return Advice(
        memory=told["limit_bytes"],
        peak=told["peak_bytes"],
        unlimited_ms=unlimited_us / 1e3,
        measured_ms=None if measured_us is None else measured_us / 1e3,
        caps=tuple(
            CapCost(
                memory=cap["limit_bytes"],
                step_ms=cap["step_us"] / 1e3,
                ratio=cap["step_us"] / max(unlimited_us, 1e-9),
                out_bytes=cap["out_bytes"],
                in_bytes=cap["in_bytes"],
                recomputed_ms=cap["recomputed_us"] / 1e3,
                burden=cap["burden"],
            )
            for cap in told["caps"]
        ),
        accumulations=tuple(
            AccumulationCost(
                times=more["times"],
                peak=more["peak_bytes"],
                step_ms=more["step_us"] / 1e3,
                ratio=more["step_us"] / max(more["unlimited_us"], 1e-9),
            )
            for more in told["accumulations"]
        ),
    )
