"""Step time against held memory, one point a method, as an SVG file that reads on light and on
dark ground."""

from __future__ import annotations

import math
from html import escape

from peers.methods import SMARTSWAP
from peers.results import GIB, plain_of

WIDTH, HEIGHT = 960, 520
# The plot's left and right end, its top and its bottom.
LEFT, RIGHT, TOP, BOTTOM = 74.0, 920.0, 60.0, 452.0
LETTER, LINE = 7.2, 15.0
TIMES = (1, 1.2, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100)
STEPS_GIB = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)

CSS = (
    "text{font:13px system-ui,sans-serif;fill:#333}"
    ".title{font-size:16px;font-weight:600;fill:#111}.mid{text-anchor:middle}"
    ".right{text-anchor:end}.soft{fill:#666}.back{fill:#fff}.grid{stroke:#e3e3e3}"
    ".ours{fill:none;stroke:#1457d9;stroke-width:3.2;stroke-linejoin:round}"
    ".peer{fill:#b35900}.plain{fill:#777}.mark{fill:#1457d9}"
)
CSS_DARK = (
    "text{fill:#d5d5d5}.title{fill:#fff}.soft{fill:#a0a0a0}.back{fill:#16181c}"
    ".grid{stroke:#2d3138}.ours{stroke:#7fb0ff}.peer{fill:#f0a35e}.plain{fill:#999}"
    ".mark{fill:#7fb0ff}"
)


def draw(results: list[dict], model: str) -> str | None:
    """The picture of one model; None where plain PyTorch or its memory is missing."""
    cells = [r for r in results if r["model"] == model and r.get("held_bytes")]
    cells = [r for r in cells if "failed" not in r]
    plain = plain_of(cells, model)
    if plain is None:
        return None
    points = [(r["held_bytes"] / GIB, r["step_ms"] / plain["step_ms"], r) for r in cells]
    x, gib_ticks = gib_scale(max(point[0] for point in points))
    y, time_ticks = time_scale([point[1] for point in points])
    parts = [*frame(model, plain), *axes(x, gib_ticks, y, time_ticks)]
    ours = sorted((p for p in points if p[2]["method"] == SMARTSWAP), key=lambda p: p[0])
    if len(ours) > 1:
        places = " ".join(f"{x(gib):.1f},{y(times):.1f}" for gib, times, _ in ours)
        parts.append(f'<polyline class="ours" points="{places}"/>')
    taken = [(x(gib) - 6, y(times) - 6, x(gib) + 6, y(times) + 6) for gib, times, _ in points]
    for gib, times, result in points:
        parts += point(x(gib), y(times), result, taken)
    return "\n".join([*parts, "</svg>", ""])


def gib_scale(most: float):
    """Places for GiB from 0 on, and where to draw lines."""
    step = next((s for s in STEPS_GIB if most / s <= 9), STEPS_GIB[-1])
    ticks = [step * number for number in range(math.floor(most / step) + 1)]

    def place(gib: float) -> float:
        return LEFT + (RIGHT - LEFT) * gib / (most * 1.04)

    return place, ticks


def time_scale(times: list[float]):
    """Places for multiples of plain PyTorch's step, and where to draw lines.

    Equal factors are equally far apart, as some methods take many times the step.
    """
    low, high = math.log(min([*times, 1.0]) * 0.95), math.log(max([*times, 1.5]) * 1.08)
    ticks = [tick for tick in TIMES if low <= math.log(tick) <= high]

    def place(times: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (math.log(times) - low) / (high - low)

    return place, ticks


def frame(model: str, plain: dict) -> list[str]:
    """What stands around the plot."""
    words = (
        f"step time against held device memory; plain PyTorch takes {plain['step_ms']:.0f} ms "
        f"and holds {plain['held_bytes'] / GIB:.1f} GiB"
    )
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" '
        'aria-label="Step time against held memory, one point for each method">',
        f"<style>{CSS}@media(prefers-color-scheme:dark){{{CSS_DARK}}}</style>",
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
        label("title", LEFT, 22, model),
        label("soft", LEFT, 42, words),
        label("mid soft", (LEFT + RIGHT) / 2, BOTTOM + 40, "held device memory, GiB"),
    ]


def axes(x, gib_ticks, y, time_ticks) -> list[str]:
    """Lines to read values by."""
    parts = []
    for tick in gib_ticks:
        parts.append(rule(x(tick), TOP, x(tick), BOTTOM))
        parts.append(label("mid", x(tick), BOTTOM + 18, f"{tick:g}"))
    for tick in time_ticks:
        parts.append(rule(LEFT, y(tick), RIGHT, y(tick)))
        parts.append(label("right", LEFT - 8, y(tick) + 4, f"{tick:g}x"))
    return parts


def point(x: float, y: float, result: dict, taken: list) -> list[str]:
    """A method's mark with its name at the first free place around it."""
    is_ours = result["method"] == SMARTSWAP
    name = f"{result['method']} {result['cap']}" if is_ours else result["method"]
    kind = "mark" if is_ours else "plain" if result["method"] == "plain" else "peer"
    width = LETTER * len(name)
    places = [
        (left, y + 4 + shift * LINE)
        for shift in (0, -1, 1, -2, 2, -3, 3, -4, 4)
        for left in (x + 9, x - 9 - width)
    ]
    boxes = [(left, base - 11, left + width, base + 3) for left, base in places]
    free = [n for n, box in enumerate(boxes) if fits(box, taken)]
    best = free[0] if free else 0
    taken.append(boxes[best])
    left, base = places[best]
    return [
        f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(name)}: '
        f"{result['step_ms']:.1f} ms</title></circle>",
        label("", left, base, name),
    ]


def fits(box, taken) -> bool:
    """Whether a box lies in the plot, clear of the others."""
    left, top, right, bottom = box
    if left < LEFT or right > WIDTH or top < TOP - LINE or bottom > BOTTOM:
        return False
    return all(right < a or left > c or bottom < b or top > d for a, b, c, d in taken)


def label(kind: str, x: float, y: float, words: str) -> str:
    """A text."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def rule(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line of the grid."""
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
