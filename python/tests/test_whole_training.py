"""`benchmarks/whole_training.py` on the CPU: a resumed training under a cap, to the bit, on one
rank and on two that share the weights.
"""

import re
import sys
from pathlib import Path

import pytest
from processes import PATIENT, python

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import whole_training

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "SMARTSWAP_MIN_BLOCK": "16KiB",
    "SMARTSWAP_DEFER_UPDATES": "on",
    "SMARTSWAP_CONFIG": str(PATIENT),
}


@pytest.mark.parametrize(
    ("cap", "parallel"), [("12MiB", ()), ("8MiB", ("--parallel", "fsdp2"))], ids=["one", "fsdp2"]
)
def test_a_whole_training_is_the_same_under_a_cap(tmp_path, monkeypatch, cap, parallel):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    words = (f"tiny-adamw-2:{cap}", "--steps", 12, "--folder", tmp_path, *parallel)
    done = python(whole_training.__file__, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    row = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    assert row[0] == "tiny-adamw-2" and row[-1] == "the same", row
    # The second process swapped, from the checkpoint on.
    out_mib, in_mib = map(float, re.findall(r"([\d.]+) MiB", row[-2]))
    assert min(out_mib, in_mib) > 1, row
    assert not list(tmp_path.iterdir())


def test_a_bit_that_differs_is_told_of():
    plain = [made(losses=["1", "2", "3", "4"])]
    capped = [made(losses=["1", "2"], weights="other"), made(losses=["3", "4"])]
    assert whole_training.row("m", "1GiB", plain, capped).endswith(" the same |")
    capped[1]["losses"] = ["3", "5"]
    capped[1]["moments"] = "other"
    assert whole_training.row("m", "1GiB", plain, capped).endswith(" DIFFERENT: losses, moments |")


def made(**told):
    """What a process tells."""
    ends = {what: what for what in whole_training.WHAT} | {"norms": [], "rates": []}
    rest = {"times_ms": [1.0], "held_bytes": 0, "moved_bytes": [0, 0], "predicted_ms": None}
    return ends | rest | told
