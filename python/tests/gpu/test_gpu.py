"""What only a GPU can show: `pytest python/tests/gpu` where there is one; skipped elsewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS))

from order_cases import KNOWN, assert_found, assert_known  # noqa: E402

SCRIPT = Path(__file__).parent / "script_features.py"
TIMEOUT_S = 300


def run_python(arguments: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command line of Python that must end well."""
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | variables
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def run(arguments: list[str], **variables: str) -> tuple[list[str], int]:
    """Runs it. Returns what it printed but for the last line, and that line's number."""
    *lines, last = run_python(arguments, **variables).stdout.splitlines()
    return lines, int(last.split()[1])


@pytest.mark.parametrize("extra", [[], ["--compile"]], ids=["eager", "compiled"])
def test_a_script_prints_the_same_under_a_cap(tmp_path, extra):
    """Convolutions, autocast, GradScaler, prefetching on a side stream, checkpoints."""
    arguments = [str(SCRIPT), "--checkpoint", str(tmp_path / "state.pt"), *extra]
    plain, plain_bytes = run(arguments)
    cap_bytes = plain_bytes * 6 // 10
    report = tmp_path / "report"
    capped, capped_bytes = run(
        ["-m", "smartswap", "--memory", str(cap_bytes), "--report", str(report), *arguments]
    )
    assert capped == plain
    assert len(plain) > 28
    assert 0 < capped_bytes <= cap_bytes
    assert (report / "explain.json").is_file()


def test_updates_that_wait_for_their_use_give_the_same(tmp_path):
    """Under GradScaler and clipping, with prefetching on another stream."""
    arguments = [str(SCRIPT), "--checkpoint", str(tmp_path / "state.pt")]
    plain, plain_bytes = run(arguments)
    cap = ["--memory", str(plain_bytes * 6 // 10), "--defer-updates", "on", "--log-level", "info"]
    done = run_python(["-m", "smartswap", *cap, *arguments])
    assert done.stdout.splitlines()[:-1] == plain
    assert re.search(r"[1-9]\d* parts of optimizer updates ran", done.stderr), done.stderr[-2000:]


def test_a_recurrent_layer_goes_on_with_its_own_random_state(tmp_path):
    """PyTorch draws it anew once a generator was set, as dropout that is made again would do."""
    arguments = [str(SCRIPT.parent / "script_recurrent.py")]
    plain, plain_bytes = run(arguments)
    report = ["--report", str(tmp_path / "report")]
    cap = ["--memory", str(plain_bytes * 6 // 10)]
    capped, _ = run(["-m", "smartswap", *cap, *report, *arguments])
    stats = json.loads((tmp_path / "report/stats.json").read_text())
    trace = json.loads((tmp_path / "report/trace.json").read_text())
    assert capped == plain
    assert stats["swapped_out_bytes"] > 0
    replayable = {op["name"] for op in trace["ops"] if op["replayable"]}
    assert "aten::native_dropout" in replayable and "aten::_cudnn_rnn" not in replayable


def test_a_variable_is_enough(tmp_path):
    """Nothing but SMARTSWAP_MEMORY is set, and each use of a block finds the bytes left there."""
    arguments = [str(SCRIPT), "--checkpoint", str(tmp_path / "state.pt")]
    plain, plain_bytes = run(arguments)
    cap_bytes = plain_bytes * 6 // 10
    capped, capped_bytes = run(arguments, SMARTSWAP_MEMORY=str(cap_bytes), SMARTSWAP_VERIFY="1")
    assert capped == plain
    assert 0 < capped_bytes <= cap_bytes


def test_another_process_has_the_device_while_training_is_suspended():
    """Three eighths of the device are the training's, and the other takes three quarters."""
    program = (
        "import subprocess, sys, torch, smartswap\n"
        "eighth = torch.cuda.mem_get_info()[1] // 8\n"
        "smartswap.enable()\n"
        "kept = [torch.full((64 << 20,), float(i), device='cuda')\n"
        "        for i in range(3 * eighth >> 28)]\n"
        "addresses = [one.data_ptr() for one in kept]\n"
        "guest = 'import torch; print(torch.ones(%d, device=\"cuda\")[-1].item())'\n"
        "with smartswap.suspended() as held:\n"
        "    command = [sys.executable, '-c', guest % (6 * eighth // 4)]\n"
        "    print(subprocess.check_output(command, text=True).strip(), held < 64 << 20)\n"
        "print(all((one == i).all() for i, one in enumerate(kept)),\n"
        "      [one.data_ptr() for one in kept] == addresses)\n"
    )
    done = run_python(["-c", program])
    assert done.stdout.splitlines() == ["1.0 True", "True True"]


def test_an_operator_that_cannot_fit_is_an_error_that_says_so(tmp_path):
    """The process and the error are PyTorch's; the text says what would have helped."""
    program = (
        "import torch, smartswap\n"
        "smartswap.enable(memory='1GiB')\n"
        "kept = torch.ones(64 << 20, device='cuda')\n"
        "try:\n"
        "    torch.empty(3 << 30, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError as error:\n"
        "    print('cap of' in str(error), float(kept.sum()) == 64 << 20)\n"
        "print('reserved', torch.cuda.max_memory_reserved())\n"
    )
    lines, reserved_bytes = run(["-c", program])
    assert lines == ["True True"]
    assert reserved_bytes <= 1 << 30


def test_profilers_of_memory_get_what_can_be_given():
    """As torchtitan's and Lightning's do it: history on, a snapshot, history off."""
    program = (
        "import torch, smartswap\n"
        "smartswap.enable(memory='1GiB', min_block='16MiB')\n"
        "for _ in range(2):\n"
        "    torch.cuda.memory._record_memory_history(max_entries=1000)\n"
        "kept = [torch.ones(64 << 20, device='cuda') for _ in range(6)]\n"
        "segments = torch.cuda.memory_snapshot()\n"
        "sizes = [segment['total_size'] for segment in segments]\n"
        "active = sum(segment['active_size'] for segment in segments)\n"
        "print(sizes.count(256 << 20), 0 < active <= 1 << 30)\n"
        "whole = torch.cuda.memory._snapshot()\n"
        "print(sorted(set(whole) & {'segments', 'device_traces'}))\n"
        "torch.cuda.memory._record_memory_history(enabled=None)\n"
    )
    done = run_python(["-c", program])
    assert done.stdout.splitlines() == ["6 True", "['device_traces', 'segments']"]
    assert done.stderr.count("memory history") == 1, done.stderr


def test_tensors_outside_go_to_another_process_and_count_towards_the_cap(tmp_path):
    """CUDA's own IPC, which refuses what moves, and pools."""
    script = tmp_path / "share.py"
    script.write_text(
        "import torch, smartswap\n"
        "import torch.multiprocessing as multiprocessing\n"
        "def fill(tensor, done):\n"
        "    tensor.add_(1)\n"
        "    torch.cuda.synchronize()\n"
        "    done.put(float(tensor[-1]))\n"
        "if __name__ == '__main__':\n"
        "    smartswap.enable(memory='2GiB')\n"
        "    moving = [torch.full((64 << 20,), float(i), device='cuda') for i in range(6)]\n"
        "    with smartswap.outside():\n"
        "        shared = torch.zeros(192 << 20, device='cuda')\n"
        "    stats = smartswap.stats()\n"
        "    print(stats['outside_bytes'] == 768 << 20,\n"
        "          stats['reserved_bytes']['peak'] <= 2 << 30)\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    done = context.Queue()\n"
        "    child = context.Process(target=fill, args=(shared, done))\n"
        "    child.start()\n"
        "    print(done.get(timeout=120))\n"
        "    child.join()\n"
        "    print(bool((shared == 1).all()),\n"
        "          all(bool((one == i).all()) for i, one in enumerate(moving)))\n"
        "    try:\n"
        "        context.Process(target=fill, args=(moving[0], done)).start()\n"
        "    except (RuntimeError, NotImplementedError) as error:\n"
        "        print('smartswap.outside()' in str(error))\n"
        "    with smartswap.outside():\n"
        "        pool = torch.cuda.MemPool()\n"
        "        with torch.cuda.use_mem_pool(pool):\n"
        "            pooled = torch.ones(1 << 20, device='cuda')\n"
        "    print(float(pooled.sum()) == 1 << 20, len(pool.snapshot()) > 0)\n"
        "    before = smartswap.stats()['outside_bytes']\n"
        "    another = torch.cuda.MemPool()\n"
        "    with torch.cuda.use_mem_pool(another):\n"
        "        more = torch.ones(64 << 20, device='cuda')\n"
        "    print(smartswap.stats()['outside_bytes'] - before >= 256 << 20)\n"
        "    del pooled, pool, shared, more, another\n"
        "    torch.cuda.ipc_collect()\n"
        "    smartswap.step()\n"
        "    print(smartswap.stats()['outside_bytes'] < 768 << 20)\n"
    )
    done = run_python([str(script)])
    assert done.stdout.splitlines() == [
        "True True", "1.0", "True True", "True", "True True", "True", "True",
    ]


@pytest.mark.parametrize("how", ["forgets", *KNOWN])
def test_order_is_checked_as_pytorch_makes_it(tmp_path, how):
    config = tmp_path / "order.toml"
    config.write_text("check_order = true\n")
    words = [str(TESTS / "script_order.py"), "cuda:0", str(config), how]
    told = json.loads(run_python(words).stdout.splitlines()[-1])
    (assert_found if how == "forgets" else assert_known)(told)


def test_a_script_with_a_side_stream_is_in_order_under_a_cap(tmp_path):
    arguments = [str(SCRIPT), "--checkpoint", str(tmp_path / "state.pt")]
    plain, plain_bytes = run(arguments)
    config, report = tmp_path / "order.toml", tmp_path / "report"
    config.write_text("check_order = true\n")
    cap = ["--memory", str(plain_bytes * 6 // 10), "--config", str(config)]
    capped, _ = run(["-m", "smartswap", *cap, "--report", str(report), *arguments])
    assert capped == plain
    order = json.loads((report / "explain.json").read_text())["order"]
    assert order["violations"] == 0 and order["accesses"] > 1000 and order["waits"] > 10, order
    assert order["foreign_calls"] > 0, order
