"""The example with a C++ operator: hooks make it train alike in little memory, and are needed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
smartswap = pytest.importorskip("smartswap")

if importlib.util.find_spec("smartswap._adapter") is None:
    pytest.skip("the package is not built: pip install ./python", allow_module_level=True)

HERE = Path(__file__).resolve().parent
MEMORY = "36MiB"
LIMIT_BYTES = 36 << 20
STEPS = ("--steps", "8")
DEVICES = ["cpu"]
if torch.cuda.is_available():
    DEVICES.append("cuda")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own, where it finds this package and this folder."""
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    # Where ninja is, which compiles the operator.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), *sys.path]))
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One run of the example."""
    return python(str(HERE / "gated.py"), "--build", str(folder), *arguments)


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a run printed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def build_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the operators are compiled, once."""
    return tmp_path_factory.mktemp("gated_op")


@pytest.mark.parametrize("device", DEVICES)
def test_training_under_a_cap_is_bit_for_bit_the_same(device: str, build_folder: Path) -> None:
    """The same weights and losses with and without the engine, in a part of the memory."""
    folder = build_folder / device
    folder.mkdir(exist_ok=True)
    plain = result(run(folder, "--device", device, *STEPS))
    capped = result(run(folder, "--device", device, "--memory", MEMORY, *STEPS))
    assert capped["checksum"] == plain["checksum"]
    assert capped["loss"] == plain["loss"]
    assert capped["limit_bytes"] == LIMIT_BYTES
    assert capped["reserved_bytes_peak"] <= LIMIT_BYTES
    assert capped["requested_bytes_peak"] > 1.5 * LIMIT_BYTES
    assert capped["swapped_in_bytes"] > LIMIT_BYTES


def test_without_hooks_it_faults(build_folder: Path) -> None:
    """What the hooks are for: the operator else reads memory that is not there."""
    folder = build_folder / "cpu"
    folder.mkdir(exist_ok=True)
    done = run(folder, "--memory", MEMORY, "--without-hooks")
    assert done.returncode in (-signal.SIGSEGV, -signal.SIGBUS), (done.returncode, done.stderr)
    # It is the cap, not the operator.
    assert result(run(folder, "--without-hooks", "--steps", "2"))["steps"] == 2


NO_ROOM = """
import sys
import torch
import smartswap
import gated

op = gated.build("cpu", sys.argv[1])
smartswap.enable(memory="4MiB", device="host", min_block="256KiB")
small = [torch.ones(1 << 18) for _ in range(6)]
large = [torch.ones(1 << 19) for _ in range(2)]
for _ in range(2):
    try:
        op.forward(*large)
    except torch.OutOfMemoryError as error:
        assert "SmartSwap: out of device memory" in str(error), error
    else:
        raise AssertionError("three tensors of 2 MiB do not fit in 4 MiB")
    # Nothing of the op is left behind.
    result = op.forward(small[0], small[5])
    assert torch.equal(result, torch.full((1 << 18,), float(result[0])))
print("fine")
"""


def test_where_there_is_no_room_python_sees_it_and_can_go_on(build_folder: Path) -> None:
    """The engine's error is PyTorch's own, and the op that failed is ended."""
    folder = build_folder / "cpu"
    folder.mkdir(exist_ok=True)
    done = python("-c", NO_ROOM, str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "fine"
