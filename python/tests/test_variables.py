"""SMARTSWAP_MEMORY=... python train.py: PyTorch opens the engine for a script as it is."""

import errno
import fcntl
import json
import os
import subprocess
import sys

import pytest
from processes import python
from smartswap import report_folder, variables
from smartswap.errors import SettingsError

TRAINING = """
import sys
import torch
torch.manual_seed(1)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(8):
    loss = model(torch.randn(512, 512)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item().hex())
smartswap = sys.modules.get("smartswap")
print(smartswap and smartswap.stats()["limit_bytes"], file=sys.stderr)
print(smartswap and smartswap.stats()["swapped_out_bytes"] > 16 << 20, file=sys.stderr)
"""


def start(tmp_path, text, *before, **settings):
    """Runs a script as a user does who sets variables. Returns what it printed on each stream."""
    script = tmp_path / "train.py"
    script.write_text(text)
    variables = {f"SMARTSWAP_{name.upper()}": value for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, *before, script], capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


BY_HAND = """
import sys
import torch
torch.manual_seed(1)
layers = [torch.randn(512, 512).mul_(0.04).requires_grad_() for _ in range(8)]
for _ in range(60):
    hidden = torch.randn(512, 512)
    for layer in layers:
        hidden = torch.relu(hidden @ layer) + hidden
    hidden.square().mean().backward()
    with torch.no_grad():
        for layer in layers:
            layer -= 0.01 * layer.grad
            layer.grad.zero_()
print([layer.double().sum().item().hex() for layer in layers])
smartswap = sys.modules.get("smartswap")
if smartswap:
    now = smartswap.stats()
    print(now["steps"], now["steps_by_stage"]["Stable"] > 0, file=sys.stderr)
"""


def test_weights_that_are_changed_by_hand_are_trained_by_a_plan(tmp_path):
    plain, _ = start(tmp_path, BY_HAND)
    capped, said = start(tmp_path, BY_HAND, memory="24MiB", device="host", min_block="512KiB")
    assert capped == plain
    assert said.count("no optimizer of torch.optim has stepped in 9 backward passes") == 1
    assert said.splitlines()[-1] == f"{60 - 8} True"


def test_a_script_that_knows_nothing_trains_under_the_cap(tmp_path):
    plain, said = start(tmp_path, TRAINING)
    # Nothing of ours is imported where nobody asks for it.
    assert said == "None\nNone\n"
    capped, said = start(tmp_path, TRAINING, memory="28MiB", device="host", log_level="info")
    assert capped == plain
    assert f"\n{28 << 20}\nTrue\n" in said
    assert "smartswap: enabled on host, cap 28.00 MiB" in said
    assert " 8 steps: " in said


def test_it_tells_what_was_asked_for_whatever_a_script_makes_of_logging(tmp_path):
    before = """
import logging.config
class Quiet(logging.Logger):
    def __init__(self, name):
        super().__init__(name)
        self.addFilter(lambda record: record.levelno >= logging.WARNING)
logging.setLoggerClass(Quiet)
"""
    later = "import torch\nlogging.config.dictConfig({'version': 1})\n"
    asked = {"memory": "28MiB", "device": "host"}
    text = before + later + TRAINING
    _, said = start(tmp_path, text, **asked, log_level="info")
    assert "smartswap: enabled on host, cap 28.00 MiB" in said
    assert " 8 steps: " in said
    _, said = start(tmp_path, text, **asked)
    assert said == f"{28 << 20}\nTrue\n"


def test_a_process_that_makes_no_tensor_says_nothing_at_its_end(tmp_path):
    _, said = start(tmp_path, "import torch", memory="64MiB", device="host", log_level="info")
    assert said == "smartswap: enabled on host, cap 64.00 MiB\n"


def test_such_a_process_leaves_the_report_of_the_others_alone(tmp_path):
    report = tmp_path / "run"
    _, said = start(tmp_path, "import torch", memory="64MiB", device="host", report=report)
    assert said == ""
    assert not report.exists()


def test_the_process_in_which_inductor_compiles_has_no_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "2")
    text = """
import functools, pathlib
from torch._inductor.async_compile import AsyncCompile
workers = AsyncCompile.process_pool()
# The worker is forked from the process that Inductor starts.
look = "open(f'/proc/{__import__(\\"os\\").getppid()}/maps').read()"
loaded = workers.submit(functools.partial(eval, look)).result()
workers.shutdown()
own = pathlib.Path("/proc/self/maps").read_text()
print(*("libsmartswap.so" in libraries for libraries in (own, loaded)), "libtorch" in loaded)
"""
    done, _ = start(tmp_path, text, memory="64MiB", device="host")
    assert done == "True False True\n"


def test_flags_win_over_variables(tmp_path):
    flags = ("-m", "smartswap", "--memory", "30MiB")
    _, said = start(tmp_path, TRAINING, *flags, memory="1GiB", device="host")
    assert said == f"{30 << 20}\nTrue\n"


# The engine of a GPU is opened later, when the script uses it.
@pytest.mark.parametrize("device", ["host", "cuda"])
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"memory": "much"}, "memory: 'much' is not a size; write 24GiB"),
        ({"memory": "0GiB"}, "memory must be more than 0; leave it out for all that is free"),
        (
            {"memory": "64MiB", "log_level": "warn"},
            "SMARTSWAP_LOG_LEVEL is one of debug, info, warning, error, not 'warn'; did you mean",
        ),
    ],
    ids=["memory", "nothing", "log level"],
)
def test_what_is_wrong_is_told_of_and_pytorch_is_imported(tmp_path, wrong, why, device):
    text = "import torch, sys; print(torch.ones(2).sum().item())"
    printed, said = start(tmp_path, text, device=device, **wrong)
    assert printed == "2.0\n"
    assert f"SMARTSWAP_MEMORY has no effect, the script runs without a cap: {why}" in said


def test_a_spawned_child_has_an_engine_of_its_own(tmp_path):
    text = """
        import multiprocessing, os, torch
        def report():
            import smartswap
            print(smartswap.is_enabled(), smartswap.stats()["limit_bytes"], flush=True)
        if __name__ == "__main__":
            report()
            child = multiprocessing.get_context("spawn").Process(target=report)
            child.start()
            child.join()
    """
    text = "\n".join(line[8:] for line in text.splitlines())
    printed, _ = start(tmp_path, text, memory="64MiB", device="host")
    assert printed == f"True {64 << 20}\n" * 2


def test_scripts_may_open_it_themselves(tmp_path):
    text = """
import smartswap
try:
    smartswap.enable("1GiB")
except smartswap.SmartSwapError as error:
    print(error)
smartswap.disable()
smartswap.enable("65MiB", device="host")
print(smartswap.stats()["limit_bytes"])
"""
    printed, _ = start(tmp_path, text, memory="64MiB", device="host")
    assert "is enabled already" in printed
    assert printed.splitlines()[-1] == str(65 << 20)


def test_variables_are_settings():
    found = variables.wishes({
        "SMARTSWAP_MEMORY": "60%",
        "SMARTSWAP_MIN_BLOCK": "1MiB",
        "SMARTSWAP_VERIFY": "1",
        "SMARTSWAP_MANUAL_STEPS": "False",
        "SMARTSWAP_RANK_WAIT": "1",
        "SMARTSWAP_REPORT": "",
        "SMARTSWAP_CUDA_LIBRARY": "/somewhere/libcuda.so",
        "MEMORY": "1GiB",
    })
    due = {"memory": "60%", "min_block": "1MiB", "verify": True, "manual_steps": False}
    assert found == {**due, "rank_wait": "1"}
    with pytest.raises(SettingsError, match="SMARTSWAP_MEMROY; did you mean SMARTSWAP_MEMORY"):
        variables.wishes({"SMARTSWAP_MEMROY": "1GiB"})


def test_help_names_the_variable():
    assert "SMARTSWAP_MEMORY=24GiB python train.py" in python("-m", "smartswap", "--help").stdout


def test_two_processes_leave_two_reports(tmp_path):
    text = """
import multiprocessing, torch
def train(steps):
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(64, 256)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    train(2)
    child = multiprocessing.get_context("spawn").Process(target=train, args=(5,))
    child.start()
    child.join()
"""
    report = tmp_path / "report"
    wishes = {"memory": "64MiB", "device": "host", "report": report}

    def steps(folder):
        return json.loads((folder / "stats.json").read_text())["steps"]

    report.mkdir()
    earlier = report / "stats.json"
    earlier.write_text("of a run before, to be written over")
    os.utime(earlier, (0, 0))
    _, said = start(tmp_path, text, **wishes)
    child = report / "process1"
    assert f"the report of another process in {report} is now in {child}" in said
    assert [steps(report), steps(child)] == [2, 5]
    # Whatever a report has would have moved.
    names = {file.name for file in report.iterdir() if file.is_file()}
    assert {"explain.json", "stats.json"} <= names <= set(report_folder._FILES)
    assert (child / "explain.json").exists()


def test_a_report_needs_no_lock(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", fail)
    folder = tmp_path / "report"
    with report_folder.claimed(str(folder)):
        (folder / "stats.json").write_text("{}")
    # Nobody says that it is this process's own.
    with report_folder.claimed(str(folder)):
        assert (folder / "process1" / "stats.json").read_text() == "{}"
        report_folder.note_written(folder)
        (folder / "stats.json").write_text("{}")
    with report_folder.claimed(str(folder)):
        assert not (folder / "process2").exists()
