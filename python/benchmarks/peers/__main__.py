"""Other ways to train in less device memory beside SmartSwap, on the same model, in one run.

    python benchmarks/peers                                # llama4k, all methods
    python benchmarks/peers --model b3 --caps 60% 40% --out run
    python benchmarks/peers --model tiny --methods plain checkpoint smartswap --caps 16MiB

Each row is trained in a process of its own: the same weights, the same data, a fixed number of
steps. What is held is read from outside, by NVML, while the steps run, and counts the context of
the device too. A method whose package is missing, or which fails, says so in its row.
`--out` leaves the rows and a picture for each model; with `--add` rows that are there already are
kept, and only the others run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers.methods import JOBS, METHODS, PLAIN, SMARTSWAP, Method, method
from peers.picture import draw
from peers.results import GIB, cap_name, head, plain_of, row, versions
from peers.watch import Nvml, Watch, read_host

CAPS = ["60%", "40%"]
UNITS = {"GiB": GIB, "MiB": 1 << 20}
EXIT_S = 30


def cells(names: list[str], caps: list[str]) -> list[tuple[Method, str | None]]:
    """What is to be run, in the table's order: SmartSwap once for each cap."""
    chosen = {method(name).name for name in names}
    found = []
    for candidate in METHODS:
        if candidate.name in chosen:
            with_caps = candidate.name == SMARTSWAP
            found += [(candidate, cap) for cap in (caps if with_caps else [None])]
    return found


def cap_bytes(cap: str, plain: dict | None) -> int | None:
    """A size such as 24GiB, or a share of what plain PyTorch held; None if that is unknown."""
    for unit, size in UNITS.items():
        if cap.endswith(unit):
            return int(float(cap.removesuffix(unit)) * size)
    held = (plain or {}).get("held_bytes")
    return int(float(cap.removesuffix("%")) / 100 * held) if held else None


def command(chosen: Method, cap: str | None, steps: dict, args, has_gpu: bool) -> list[str]:
    """How one cell is started."""
    words = [sys.executable]
    if chosen.name == SMARTSWAP:
        words += ["-m", SMARTSWAP, "--memory", cap]
        words += [] if has_gpu else ["--device", "host"]
    words += [str(Path(__file__).with_name("cell.py")), "--model", args.model]
    words += ["--method", chosen.name, "--steps", str(steps[chosen.name])]
    words += ["--measured", str(args.measured)]
    words += ["--deterministic"] if args.deterministic else []
    # Plain PyTorch is what all others are compared with, after as many steps as each makes.
    sums = set(steps.values()) if chosen.name == PLAIN else {steps[chosen.name]}
    return [*words, "--digest-at", *map(str, sorted(sums))]


def train(words: list[str], watch: Watch, timeout_s: float) -> dict:
    """Runs a cell, reads what is held while it steps, and returns its result."""
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    result: dict = {}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        late = threading.Event()

        def stop() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(timeout_s, stop)
        timer.start()
        for text in process.stdout:
            event = json.loads(text)
            if event["event"] == "ready":
                watch.begin()
            elif event["event"] == "done":
                result |= watch.end()
            else:
                result |= event
                break
        timer.cancel()
        watch.end()
        try:
            process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        written = log.read()
    if "event" not in result:
        result["failed"] = (
            f"not done in {timeout_s:.0f} s"
            if late.is_set()
            else ended(process.returncode, written)
        )
    result.pop("event", None)
    if "failed" in result:
        print(written[-3000:], file=sys.stderr)
    return result


def ended(code: int, written: str) -> str:
    """Why a process left no result: how it ended, and what it said last."""
    said = written.strip().splitlines()
    how = signal.Signals(-code).name if code < 0 else f"exit {code}"
    return ": ".join([how, *said[-1:]])


def run_cell(
    chosen: Method, cap: str | None, results: list[dict], args, nvml: Nvml | None, left_s: float
) -> dict:
    """One row: a result, or why there is none."""
    result = {"model": args.model, "method": chosen.name, "cap": cap}
    lacks = chosen.lacks(nvml is not None)
    if lacks:
        return result | {"failed": lacks}
    if left_s <= 0:
        return result | {"failed": f"not run: {args.minutes:g} minutes are over"}
    if cap is not None:
        size = cap_bytes(cap, plain_of(results, args.model))
        if size is None:
            return result | {"failed": f"{cap} of what? plain PyTorch's memory is not known"}
        result["cap"] = cap_name(size)
        cap = str(size)
    readings = {"host_bytes": read_host}
    if nvml is not None:
        readings["held_bytes"] = nvml.used_bytes
    words = command(chosen, cap, args.steps_of, args, nvml is not None)
    result |= train(words, Watch(readings), min(args.timeout, left_s))
    if chosen.package:
        result["versions"] = {chosen.package: installed(chosen.package)}
    return result


def installed(package: str) -> str:
    """A package's version."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "of its source"


def parse() -> argparse.Namespace:
    """The command line."""
    names = [m.name for m in METHODS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=JOBS, default="llama4k")
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=names,
        default=names,
        metavar="NAME",
        help=f"some of: {', '.join(names)}",
    )
    parser.add_argument(
        "--caps",
        nargs="+",
        default=CAPS,
        metavar="SIZE",
        help="SmartSwap's: 24GiB, 512MiB, or a share of what plain held: 60%%",
    )
    parser.add_argument("--steps", type=int, help="for all methods, instead of what each needs")
    parser.add_argument("--measured", type=int, default=3, help="the last so many steps count")
    parser.add_argument(
        "--deterministic",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="without it some gradients of plain PyTorch vary from run to run",
    )
    parser.add_argument("--timeout", type=float, default=150, help="seconds for a cell")
    parser.add_argument("--minutes", type=float, default=60, help="what has not begun is left out")
    parser.add_argument("--out", type=Path, help="a folder for the rows and the picture")
    parser.add_argument("--add", action="store_true", help="keep the rows that are in --out")
    args = parser.parse_args()
    args.steps_of = {name: args.steps or method(name).steps for name in args.methods}
    if PLAIN in args.steps_of:
        # All others are compared with it.
        args.steps_of[PLAIN] = max(args.steps_of.values())
    return args


def earlier(file: Path) -> list[dict]:
    """The rows of earlier calls that have a result."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return [r for r in map(json.loads, lines) if "failed" not in r]


def main() -> None:
    """Runs the cells, and prints each row as soon as it is there."""
    args = parse()
    begin = time.monotonic()
    nvml = Nvml.open()
    file = args.out / "peers.jsonl" if args.out else None
    results = earlier(file) if file and args.add else []
    print(head(), flush=True)
    for result in results:
        print(row(result, plain_of(results, result["model"])), flush=True)
    for chosen, cap in cells(args.methods, args.caps):
        # Caps are remembered as they were asked for.
        asked = (args.model, chosen.name, cap)
        if any((r["model"], r["method"], r["asked"]) == asked for r in results):
            continue
        left_s = args.minutes * 60 - (time.monotonic() - begin)
        result = run_cell(chosen, cap, results, args, nvml, left_s) | {"asked": cap}
        results.append(result)
        print(row(result, plain_of(results, args.model)), flush=True)
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(r) + "\n" for r in results))
    print(f"\n{date.today()}, {versions(results)}")
    for model in sorted({result["model"] for result in results}):
        picture = draw(results, model)
        if file and picture:
            file.with_name(f"peers-{model}.svg").write_text(picture)


if __name__ == "__main__":
    main()
