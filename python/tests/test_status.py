"""The file that tells `smartswap top` of a training: whole at any time, and gone with it."""

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap

import processes
import pytest
from smartswap import program, status

TRAINING = """
    smartswap.enable("40MiB", device="host", min_block="64KiB")
    file = smartswap.status.folder() / f"{os.getpid()}.json"
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    def train(count):
        for step in range(count):
            model(torch.randn(1024, 512)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    """A folder for such files that no other test writes to."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def test_a_training_tells_of_itself_while_it_lasts(tmp_path, runtime):
    text = TRAINING + """
    import json, time
    assert not file.exists()
    train(1)
    first = json.loads(file.read_text())
    assert (first["pid"], first["steps"]) == (os.getpid(), 1)
    assert first["command"] == sys.orig_argv and first["device"] == "host"
    assert first["started"] == smartswap.status.started(os.getpid())
    time.sleep(smartswap.status._PAUSE_S)
    train(8)
    last = json.loads(file.read_text())
    now = smartswap.stats()
    # It is not written with each step.
    assert 1 < last["steps"] <= 9 and last["written_s"] > first["written_s"]
    assert last["limit_bytes"] == 40 * MIB >= last["reserved_bytes"]["peak"] > 20 * MIB
    assert 0 < last["swapped_out_bytes"] <= now["swapped_out_bytes"]
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0 and file.exists(), "a child leaves it"
    assert os.listdir(file.parent) == [file.name]
    smartswap.disable()
    print(file.exists())
    """
    assert processes.run(tmp_path, text) == "False\n"
    home = runtime / "smartswap"
    assert os.listdir(home) == [], "it goes with the process"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_what_a_killed_one_leaves_goes_with_the_next(tmp_path, runtime):
    text = TRAINING + "    train(1)\n    os.kill(os.getpid(), 9)\n"
    script = tmp_path / "killed.py"
    script.write_text(processes.START + textwrap.dedent(text))
    assert processes.python(script, cwd=tmp_path).returncode == -signal.SIGKILL
    (left,) = (runtime / "smartswap").iterdir()
    assert json.loads(left.read_text())["started"] != status.started(int(left.stem))
    smartswap = program.path()
    if smartswap is not None:
        shown = subprocess.run([smartswap, "top", left.stem], capture_output=True, text=True)
        assert shown.returncode == 1 and "without a word" in shown.stdout
    # One that lives keeps its own.
    kept = runtime / "smartswap" / f"{os.getpid()}.json"
    kept.write_text(json.dumps({"started": status.started(os.getpid())}))
    processes.run(tmp_path, TRAINING + "    train(1)\n")
    assert list((runtime / "smartswap").iterdir()) == [kept]


def test_a_training_goes_on_where_nothing_can_be_told(tmp_path, runtime, monkeypatch):
    untold = TRAINING + "    train(2)\n    print(file.exists())\n"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (runtime / "smartswap").symlink_to(elsewhere)
    assert processes.run(tmp_path, untold) == "False\n"
    assert os.listdir(elsewhere) == [], "nothing is written through a link"
    (runtime / "smartswap").unlink()
    (runtime / "smartswap").mkdir()
    (runtime / "smartswap").chmod(0o777)
    assert processes.run(tmp_path, untold) == "False\n"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none either"))
    text = "import smartswap; print(smartswap.status.folder())"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{tmp_path}/none either/smartswap-{os.getuid()}"
    assert processes.run(tmp_path, untold) == "False\n"
