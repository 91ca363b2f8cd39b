"""The table: one row a cell, each compared with plain PyTorch."""

from __future__ import annotations

from peers.methods import PLAIN, method

GIB = 1 << 30
COLUMNS = (
    "model",
    "method",
    "cap",
    "step",
    "step, of plain",
    "tokens/s",
    "held",
    "held, of plain",
    "host memory",
    "pinned",
    "losses",
    "weights",
)
# How each column is set in Markdown: words to the left, figures to the right.
_MARKS = {True: "---:", False: "---"}
_WORDS = ("model", "method", "losses", "weights")


def head() -> str:
    """The two lines above the rows."""
    marks = [_MARKS[column not in _WORDS] for column in COLUMNS]
    return f"{line(COLUMNS)}\n|{'|'.join(marks)}|"


def line(cells) -> str:
    """A row of Markdown."""
    return f"| {' | '.join(cells)} |"


def row(result: dict, plain: dict | None) -> str:
    """One cell beside plain PyTorch, which may be itself, or may be missing."""
    names = [result["model"], result["method"], result.get("cap") or ""]
    if "failed" in result:
        return line([*names, result["failed"].replace("|", "/"), *[""] * (len(COLUMNS) - 4)])
    other = plain if plain and plain is not result and "failed" not in plain else None
    step = ratio(result["step_ms"], other and other["step_ms"])
    held = ratio(result.get("held_bytes"), other and other.get("held_bytes"))
    return line(
        [
            *names,
            f"{result['step_ms']:.1f} ms",
            step,
            f"{result['tokens_per_s']:.0f}",
            gibibytes(result.get("held_bytes")),
            held,
            gibibytes(result.get("host_bytes")),
            gibibytes(result.get("pinned_bytes")),
            losses(result, other),
            weights(result, other),
        ]
    )


def ratio(value: float | None, base: float | None) -> str:
    """One over the other, where both are known."""
    return f"{value / base:.3f}" if value and base else ""


def gibibytes(value: int | None) -> str:
    """Bytes for readers."""
    return "" if value is None else f"{value / GIB:.2f} GiB"


def cap_name(value: int) -> str:
    """A cap, without digits that say nothing."""
    return f"{value / GIB:.3g} GiB" if value >= GIB else f"{value / (1 << 20):.3g} MiB"


def losses(result: dict, plain: dict | None) -> str:
    """How the losses of the steps that both made compare.

    The same bits are `same`. Others are `DIFFERS` for a method whose arithmetic is that of plain
    PyTorch, and otherwise the largest difference, as a share of the loss.
    """
    if plain is None:
        return ""
    pairs = list(zip(result["losses"], plain["losses"], strict=False))
    if all(ours == theirs for ours, theirs in pairs):
        return "same"
    if method(result["method"]).is_exact:
        return "DIFFERS"
    floats = [(float.fromhex(ours), float.fromhex(theirs)) for ours, theirs in pairs]
    if any(ours != ours for ours, _ in floats):
        return "not a number"
    return f"within {max(abs(ours / theirs - 1) for ours, theirs in floats):.0e}"


def weights(result: dict, plain: dict | None) -> str:
    """Whether the weights have the same bits after as many steps; nothing where nobody looked."""
    if plain is None:
        return ""
    steps = str(len(result["times_ms"]))
    ours, theirs = result["weights"].get(steps), plain["weights"].get(steps)
    if ours is None or theirs is None:
        return ""
    if ours == theirs:
        return "same"
    return "DIFFERS" if method(result["method"]).is_exact else "differs"


def plain_of(results: list[dict], model: str) -> dict | None:
    """The cell of plain PyTorch."""
    cells = (r for r in results if r["model"] == model and r["method"] == PLAIN)
    return next(cells, None)


def versions(results: list[dict]) -> str:
    """What was compared: packages and the device."""
    found = {}
    for result in results:
        found.update(result.get("versions", {}))
        if "torch" in result:
            found["torch"] = result["torch"]
    devices = sorted({result["device"] for result in results if "device" in result})
    return ", ".join([*devices, *(f"{name} {found[name]}" for name in sorted(found))])
