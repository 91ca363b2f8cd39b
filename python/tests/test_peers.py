"""The table and the picture of `benchmarks/peers`, without training anything."""

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from peers import __main__ as peers
from peers import methods, picture, results, watch

GIB = results.GIB


def cell(name, held_gib=None, step_ms=100.0, losses=(4.0, 3.0), weights="aa", cap=None, **more):
    """A result as a cell gives it."""
    held = {} if held_gib is None else {"held_bytes": int(held_gib * GIB)}
    return {
        "model": "b3",
        "method": name,
        "cap": cap,
        "step_ms": step_ms,
        "tokens_per_s": 1e5 / step_ms,
        "times_ms": [step_ms] * len(losses),
        "losses": [loss.hex() for loss in losses],
        "weights": {str(len(losses)): weights},
        "host_bytes": GIB,
        "pinned_bytes": 0,
        **held,
        **more,
    }


def columns(result, plain):
    """A row by its columns."""
    cells = results.row(result, plain)[2:-2].split(" | ")
    return dict(zip(results.COLUMNS, cells, strict=True))


def test_a_row_stands_beside_plain():
    plain = cell("plain", 80)
    shown = columns(cell("checkpoint", 40, 125.0), plain)
    assert shown["step"] == "125.0 ms"
    assert shown["held"] == "40.00 GiB"
    assert (shown["step, of plain"], shown["held, of plain"]) == ("1.250", "0.500")
    assert (shown["losses"], shown["weights"]) == ("same", "same")
    itself = columns(plain, plain)
    assert (itself["step, of plain"], itself["losses"], itself["weights"]) == ("", "", "")
    failed = {"model": "b3", "method": "compile", "failed": "ValueError: a | b"}
    assert columns(failed, plain)["step"] == "ValueError: a / b"
    assert results.head().count("|") == 2 * (len(results.COLUMNS) + 1)


def test_bits_that_differ_are_told():
    plain = cell("plain", 80)
    off = (4.0, 3.003)
    assert columns(cell("smartswap", 40, losses=off), plain)["losses"] == "DIFFERS"
    assert columns(cell("smartswap", 40, weights="bb"), plain)["weights"] == "DIFFERS"
    assert columns(cell("compile", 40, losses=off), plain)["losses"] == "within 1e-03"
    assert columns(cell("compile", 40, weights="bb"), plain)["weights"] == "differs"
    broken = cell("compile", 40, losses=(4.0, float("nan")))
    assert columns(broken, plain)["losses"] == "not a number"


def test_only_the_steps_that_both_made_are_compared():
    plain = cell("plain", 80, losses=(4.0, 3.0, 2.0))
    short = cell("checkpoint", 40, losses=(4.0, 3.0))
    assert columns(short, plain)["losses"] == "same"
    # Nobody summed the weights of plain PyTorch after two steps.
    assert columns(short, plain)["weights"] == ""
    plain["weights"]["2"] = "aa"
    assert columns(short, plain)["weights"] == "same"


def test_a_missing_package_is_listed(monkeypatch):
    monkeypatch.setattr(methods, "find_spec", lambda name: None)
    lacking = {m.name for m in methods.METHODS if m.lacks(has_gpu=True) == "not installed"}
    assert lacking == {m.name for m in methods.METHODS if m.package}
    args = SimpleNamespace(model="b3", minutes=1)
    row = peers.run_cell(methods.method("zero3-offload"), None, [], args, None, 60)
    assert "| zero3-offload |  | not installed |" in results.row(row, cell("plain", 80))


def test_what_ends_without_a_result_says_how(tmp_path):
    def ran(text, timeout_s=30):
        return peers.train([sys.executable, "-c", text], watch.Watch({"n": lambda: 1}), timeout_s)

    assert ran("raise SystemExit('no such device')")["failed"] == "exit 1: no such device"
    assert ran("import os; os.kill(os.getpid(), 9)")["failed"] == "SIGKILL"
    assert ran("import time; time.sleep(60)", 0.2)["failed"] == "not done in 0 s"
    told = [{"event": "ready"}, {"event": "done"}, {"event": "result", "step_ms": 1}]
    text = "\n".join(f"print({json.dumps(event)!r}, flush=True)" for event in told)
    assert ran(text) == {"n": 0, "step_ms": 1}


def test_watching_tells_the_most_above_the_first():
    values = iter([5, 9])
    reads_again = threading.Event()

    def read():
        value = next(values, None)
        if value is not None:
            return value
        # Once all were read, each reading is less than the largest.
        reads_again.set()
        return 7

    watching = watch.Watch({"n": read})
    assert watching.end() == {}
    watching.begin()
    assert reads_again.wait(30)
    assert watching.end() == {"n": 4}
    assert watch.host_used_bytes("MemTotal: 10 kB\nMemFree: 1 kB\nMemAvailable: 4 kB\n") == 6144


def test_smartswap_runs_once_for_each_cap():
    names = ["smartswap", "checkpoint", "plain"]
    chosen = [(m.name, cap) for m, cap in peers.cells(names, ["60%", "24GiB"])]
    assert chosen == [
        ("plain", None),
        ("checkpoint", None),
        ("smartswap", "60%"),
        ("smartswap", "24GiB"),
    ]
    assert peers.cap_bytes("60%", cell("plain", 80)) == 48 * GIB
    assert peers.cap_bytes("512MiB", None) == GIB // 2
    assert peers.cap_bytes("60%", None) is None


def test_the_picture_has_one_point_for_each_method():
    names = [m.name for m in methods.METHODS if m.name != "smartswap"]
    rows = [cell(name, 20 + number, 100 + 40 * number) for number, name in enumerate(names)]
    rows += [cell("smartswap", 48, 130, cap="48 GiB"), cell("smartswap", 32, 300, cap="32 GiB")]
    failed = {"model": "b3", "method": "trl-offload", "cap": None, "failed": "OutOfMemoryError"}
    rows += [failed, failed | {"held_bytes": GIB}]
    rows += [cell("plain", 9, model="llama4k")]
    drawn = picture.draw(rows, "b3")
    texts = [element.text or "" for element in ElementTree.fromstring(drawn).iter()]
    assert drawn.count("<circle") == len(names) + 2
    for name in [*names, "smartswap 48 GiB", "smartswap 32 GiB"]:
        assert texts.count(name) == 1, name
    assert drawn.count("<polyline") == 1
    assert "prefers-color-scheme:dark" in drawn
    assert "nan" not in drawn


def test_nothing_is_drawn_without_device_memory():
    assert picture.draw([cell("plain"), cell("checkpoint")], "b3") is None
    assert picture.draw([cell("checkpoint", 40)], "b3") is None
    assert picture.draw([cell("plain", 80)], "b3").count("<circle") == 1


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_is_told_of_what_goes_to_the_host(stage):
    for job in methods.JOBS.values():
        config = methods.zero_config(stage, job)
        zero = config["zero_optimization"]
        assert (zero["stage"], "offload_param" in zero) == (stage, stage == 3)
        assert ("bf16" in config) == (job.weights == "bfloat16")
        assert config["gradient_accumulation_steps"] == job.micro_batches
