"""Trainers of others under a cap, beside the same training without one: with the callbacks that are
for them, and with nothing but a variable."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from test_scripts import launch

HERE = Path(__file__).parent
# As users start scripts.
ACCELERATE = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize(
    ("script", "module", "ways"),
    [
        ("trainer_hugging_face.py", "transformers", [[], ["--switch"]]),
        ("trainer_lightning.py", "lightning", [[]]),
    ],
)
def test_a_trainer_prints_what_it_prints_without(script, module, ways):
    pytest.importorskip(module)
    under_cap = [[HERE / script, "--memory", "16MiB", *way] for way in ways]
    plain, *capped = launch([HERE / script], *under_cap)
    assert plain.returncode == 0, plain.stderr
    assert len(plain.stdout.split()) > 3
    for done in capped:
        assert done.returncode == 0, done.stderr
        assert done.stdout == plain.stdout


def run(words, **variables):
    """What it printed, and what was told on stderr."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("launcher", "script", "module", "memory"),
    [
        ((), "trainer_hugging_face.py", "transformers", "16MiB"),
        ((), "trainer_lightning.py", "lightning", "16MiB"),
        (ACCELERATE, "trainer_accelerate.py", "accelerate", "20MiB"),
        (TORCHRUN, "trainer_accelerate.py", "accelerate", "24MiB"),
    ],
)
def test_a_variable_is_enough(launcher, script, module, memory):
    pytest.importorskip(module)
    plain, said = run([*launcher, HERE / script])
    assert "smartswap" not in said
    variables = {"MEMORY": memory, "DEVICE": "host", "MIN_BLOCK": "64KiB", "LOG_LEVEL": "info"}
    capped, said = run(
        [*launcher, HERE / script],
        **{f"SMARTSWAP_{name}": value for name, value in variables.items()},
    )
    assert capped == plain
    assert len(plain.split()) > 3
    # Each process that trains tells of itself, and had to move something.
    moved = re.findall(r"smartswap: \d+ steps: .* moved out ([0-9.]+) (\w+), in", said)
    assert len(moved) == (2 if launcher is TORCHRUN else 1), said
    assert all(float(number) > 1 and unit in ("MiB", "GiB") for number, unit in moved), moved
