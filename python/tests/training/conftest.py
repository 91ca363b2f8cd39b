"""Runs each workload capped and with plain PyTorch, side by side, and compares them."""

import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from forks import Forks, environment

HERE = Path(__file__).parent
SOURCE = HERE.parents[1]
if (SOURCE / "smartswap" / "_built_for.json").is_file():
    # Built in place: other processes do not find it by themselves.
    os.environ["PYTHONPATH"] = str(SOURCE)
# A run that takes longer hangs.
PATIENCE_S = 240
# By then a model whose steps are alike has found its plan.
SETTLED_STEPS = 4
MIB = 1 << 20


def device_file(pid):
    """The file in memory that is the software device of a process; None before it is open."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        for entry in folder.iterdir():
            if "npu-sys host device" in os.readlink(entry):
                return entry
    except OSError:
        pass
    return None


class Watch(threading.Thread):
    """Samples the memory that the kernel holds for the software devices of processes."""

    def __init__(self, pids):
        super().__init__(daemon=True)
        self.peak_bytes = dict.fromkeys(pids, 0)
        self._files = {}
        self._done = threading.Event()

    def run(self):
        while not self._done.wait(0.001):
            for pid in self.peak_bytes:
                file = self._files.get(pid) or device_file(pid)
                if file is None:
                    continue
                self._files[pid] = file
                try:
                    held_bytes = file.stat().st_blocks * 512
                except OSError:
                    continue
                self.peak_bytes[pid] = max(self.peak_bytes[pid], held_bytes)

    def stop(self):
        self._done.set()
        self.join()


@dataclass
class Run:
    """What one run came to."""

    code: int
    log: str
    kernel_peak_bytes: int
    result: dict = field(default_factory=dict)


class Server:
    """Forks runs from a process that has loaded what they use."""

    def __init__(self, folder):
        self._folder = folder
        self._count = 0
        self._forks = Forks(HERE, "child")

    def _script(self, run):
        """A run as a script with its word and its files."""
        self._count += 1
        run["result"] = str(self._folder / f"{self._count}.json")
        log = str(self._folder / f"{self._count}.log")
        return {
            "words": [str(HERE / "child.py"), json.dumps(run)],
            "environment": {**environment(), **run.get("environment", {})},
            "stdout": log,
            "stderr": log,
        }

    def run(self, runs):
        """Starts runs at once and waits for them."""
        scripts = [self._script(run) for run in runs]
        pids = self._forks.start(scripts)
        watch = Watch(pid for pid, run in zip(pids, runs) if run["cap_bytes"] is not None)
        watch.start()
        codes = self._forks.wait(pids, PATIENCE_S)
        watch.stop()
        done = []
        for pid, run, script, code in zip(pids, runs, scripts, codes):
            log = Path(script["stderr"]).read_text(errors="replace")
            made = Run(code, log, watch.peak_bytes.get(pid, 0))
            if code == 0:
                made.result = json.loads(Path(run["result"]).read_text())
            done.append(made)
        return done

    def close(self):
        self._forks.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """What forks runs, for all tests."""
    made = Server(tmp_path_factory.mktemp("runs"))
    yield made
    made.close()


def assert_same(capped, plain):
    """Every loss, gradient, weight and state has the bits of the plain run."""
    assert capped["losses"] == plain["losses"]
    assert capped["tensors"].keys() == plain["tensors"].keys()
    wrong = [name for name, bits in plain["tensors"].items() if capped["tensors"][name] != bits]
    assert not wrong, f"other bits in {wrong}"


def assert_capped(run, cap_bytes):
    """The cap held, by the engine's and by the kernel's count, and bytes moved both ways."""
    stats = run.result["stats"]
    assert stats["limit_bytes"] <= cap_bytes
    assert stats["reserved_bytes"]["peak"] <= cap_bytes
    assert run.kernel_peak_bytes <= cap_bytes
    assert run.kernel_peak_bytes > cap_bytes // 4, "the device's file was not seen"
    assert stats["swapped_out_bytes"] > 0
    assert stats["swapped_in_bytes"] > 0


def assert_settled(course):
    """The last steps ran under a plan that made room, and met neither misses nor rescues."""
    last = course[-SETTLED_STEPS:]
    stages = [stats["stage"] for stats in course]
    assert {stats["stage"] for stats in last} == {"Stable"}, stages
    assert last[-1]["misses"] == last[0]["misses"]
    assert last[-1]["rescues"] == last[0]["rescues"]
    back = [stats["swapped_in_bytes"] + stats["recomputed_ops"] for stats in last]
    assert back[-1] > back[0], "nothing was away"


@pytest.fixture
def compare(server, request):
    """Compares a workload under a cap with itself in plain PyTorch.

    What is said of the cap does not hold for the ranks `idle`, which fit. The ranks `fails` end
    with an exception. Returns the capped run, or the list of those of all ranks.
    """

    def run(workload, cap_mib, *, settles=True, ranks=1, idle=(), fails=(), **options):
        cap_bytes = int(cap_mib * MIB)
        runs = []
        plain = options.pop("plain_arguments", options.get("arguments", {}))
        for cap in (cap_bytes, None):
            for rank in range(ranks):
                made = {"workload": workload, "cap_bytes": cap, **options}
                if cap is None:
                    made["arguments"] = plain
                if ranks > 1:
                    made["environment"] = rank_environment(rank, ranks, cap, server)
                runs.append(made)
        began = time.monotonic()
        done = server.run(runs)
        for place, one in enumerate(done):
            expected = 3 if place % ranks in fails else 0
            assert one.code == expected, f"exit code {one.code}\n{one.log}"
        print(f"{workload}: {time.monotonic() - began:.1f} s")
        for rank, (capped, plain) in enumerate(zip(done[:ranks], done[ranks:])):
            if rank in fails:
                continue
            show(capped)
            assert_same(capped.result, plain.result)
            if rank in idle:
                continue
            assert_capped(capped, cap_bytes)
            if settles:
                assert_settled(capped.result["course"])
        return done[0] if ranks == 1 else done[:ranks]

    return run


def show(run):
    """Prints what a failed test should be read with."""
    for step, stats in enumerate(run.result["course"]):
        moved = stats["swapped_out_bytes"] >> 10, stats["swapped_in_bytes"] >> 10
        plan = f"{stats['plan']:x}"
        calls = list(stats["last_memory_calls"].values())
        print(step, stats["stage"], plan, moved, stats["misses"], stats["rescues"], calls)
    print("kernel peak", run.kernel_peak_bytes, run.result["stats"])


def rank_environment(rank, ranks, cap, server):
    """What a launcher sets for each rank."""
    kind = "plain" if cap is None else "capped"
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "STORE": str(server._folder / f"store-{server._count}-{kind}"),
    }
