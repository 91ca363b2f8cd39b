"""Runs public training scripts, unmodified, plainly and under caps: same weights, within the cap.

    python python/tests/public/run.py SOURCES [--device cuda] [--only WORD ...] [--caps 60 40]

SOURCES has the repositories that scripts.py names, as their authors publish them. Every run is a
process of its own in a folder of its own; what makes it deterministic, forced/sitecustomize.py, is
the same for all of them. A step's time is the median of the later half. Memory on a GPU is what
NVML says of the device. Ends with 1 if any run fails, differs from the plain one, or holds more
than its cap.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import inputs  # noqa: E402
from scripts import SCRIPTS, Script  # noqa: E402

MIB = 1 << 20
# What a CUDA context takes besides: measured as at most this on an H200.
CONTEXT_MIB = 900
TIMEOUT_S = 900


@dataclass
class Run:
    """What one run left behind."""

    code: int
    seconds: float
    # Of the weights, and the number of optimizer steps.
    digest: str
    step_ms: float
    held_mib: float
    tail: str
    # Of each step, the norms of its gradients.
    norms: list[list[float]]
    # What the check of order looked at, where the settings turn it on.
    order: dict[str, int] | None


class Nvml:
    """The device's memory in use above what it was, by NVML."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._read = pynvml.nvmlDeviceGetMemoryInfo
        self._device = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._idle = self._used()
        self._stopped = threading.Event()
        self.peak_mib = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _used(self) -> float:
        return self._read(self._device).used / MIB

    def _watch(self) -> None:
        while not self._stopped.wait(0.01):
            self.peak_mib = max(self.peak_mib, self._used() - self._idle)

    def stop(self) -> float:
        self._stopped.set()
        self._thread.join()
        return self.peak_mib


@dataclass(frozen=True)
class Folders:
    """Where all scripts have their sources, inputs and settings, and runs that differ are kept."""

    sources: Path
    data: Path
    kept: Path
    config: Path | None


class Place:
    """Where one script runs: its sources, its inputs, and a fresh folder for each run."""

    def __init__(self, script: Script, folders: Folders, is_small: bool) -> None:
        self.script = script
        self._folders = folders
        self._words = list(script.small if is_small else script.large)
        self._is_small = is_small
        # Some operator of it cannot be deterministic.
        self.warns_only = False
        self._base = Path(tempfile.mkdtemp(prefix="public-"))
        self._prepare()

    def _prepare(self) -> None:
        file = self._folders.sources / self.script.file
        if self.script.module:
            repository = self._folders.sources / Path(self.script.file).parts[0]
            no_history = shutil.ignore_patterns(".git")
            shutil.copytree(repository, self._base, dirs_exist_ok=True, ignore=no_history)
        else:
            for part in file.parent.glob("*.py"):
                shutil.copy(part, self._base)
        (self._base / "data").symlink_to(self._folders.data / "nanogpt")
        if self.script.before:
            words = [word for word in self._words if not word.startswith("--init_from")]
            done = self.run(None, [*words, *self.script.before], is_kept=True)
            assert done.code == 0, done.tail

    def run(self, cap_mib: int | None, words: Sequence[str] = (), is_kept: bool = False) -> Run:
        """One run, under a cap if one is given."""
        folder = self._base if is_kept else Path(f"{self._base}-run")
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self._base, folder, symlinks=True)
        capped = []
        if cap_mib is not None:
            capped = ["-m", "smartswap", "--memory", f"{cap_mib}MiB"]
            capped += ["--report", "smartswap-report"]
            config = self._folders.config
            capped += ["--config", str(config)] if config is not None else []
            capped += ["--device", "host", "--min-block", "64KiB"] if self._is_small else []
        inputs_at, out = self._folders.data, folder / "out"
        given = [word.format(data=inputs_at, out=out) for word in words or self._words]
        (folder / "out").mkdir(exist_ok=True)
        module = self.script.module
        started_by = ["-m", module] if module else [Path(self.script.file).name]
        command = [sys.executable, *capped, *started_by, *given]
        watch = None if self._is_small else Nvml()
        started = time.monotonic()
        with (folder / "log").open("w+") as log:
            done = subprocess.run(
                command,
                cwd=folder,
                env=self._environment(folder),
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
            )
            log.seek(0)
            tail = log.read()[-3000:]
        seconds = time.monotonic() - started
        held_mib = watch.stop() if watch is not None else _held_mib(folder / "smartswap-report")
        digest = folder / "digest"
        words = digest.read_text().splitlines() if digest.exists() else ["none", "0"]
        norms = _norms(folder / "digest.norms")
        order = _explained(folder / "smartswap-report").get("order")
        step_ms = float(words[1])
        return Run(done.returncode, seconds, words[0], step_ms, held_mib, tail, norms, order)

    def _environment(self, folder: Path) -> dict[str, str]:
        paths = [str(HERE / "forced"), os.environ.get("PYTHONPATH", "")]
        own = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PUBLIC_DIGEST": str(folder / "digest"),
            "PUBLIC_WARNS_ONLY": str(int(self.warns_only)),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "HF_HOME": str(folder / "hf"),
            "TOKENIZERS_PARALLELISM": "false",
        }
        if self._is_small:
            own |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"}
        for name, value in self.script.environment.items():
            own[name] = value.format(data=self._folders.data)
        return {**os.environ, **own}

    def keep(self) -> Path:
        """Keeps what the last run left: its output, its report, its norms."""
        name = self.script.name.replace(" ", "-").replace(",", "")
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folders.kept))
        for name in ("log", "digest", "digest.norms", "smartswap-report"):
            left = Path(f"{self._base}-run") / name
            if left.is_dir():
                shutil.copytree(left, folder / name)
            elif left.exists():
                shutil.copy(left, folder)
        return folder

    def remove(self) -> None:
        for folder in (self._base, Path(f"{self._base}-run")):
            shutil.rmtree(folder, ignore_errors=True)


def _held_mib(report: Path) -> float:
    """What the software device held: SmartSwap's own word, which other tests judge."""
    explained = _explained(report)
    return explained["memory"]["active_bytes_peak"] / MIB if explained else 0.0


def _explained(report: Path) -> dict[str, Any]:
    explained = report / "explain.json"
    return json.loads(explained.read_text()) if explained.exists() else {}


def _norms(path: Path) -> list[list[float]]:
    if not path.exists():
        return []
    import torch

    return [each.tolist() for each in torch.load(path)]


def _first_difference(plain: Run, other: Run) -> str:
    """In which step, and in which gradients, two runs part."""
    for step, (left, right) in enumerate(zip(plain.norms, other.norms, strict=False)):
        if len(left) != len(right):
            return f"step {step} has {len(right)} gradients of {len(left)}"
        # In words, so that one that is no number is itself.
        pairs = enumerate(zip(map(repr, left), map(repr, right), strict=True))
        apart = [index for index, (one, two) in pairs if one != two]
        if apart:
            return f"first in step {step}: gradients {apart[:8]}, {len(apart)} of {len(left)}"
    return "all gradients have the same norms"


def judge(script: Script, caps: Sequence[int], folders: Folders, is_small: bool) -> bool:
    """Runs a script in all ways and prints a row for each. Returns whether all were right."""
    place = Place(script, folders, is_small)
    try:
        plain = place.run(None)
        if "does not have a deterministic implementation" in plain.tail:
            place.warns_only = True
            plain = place.run(None)
        # The software device has no plain memory to look at: what it holds with room for all.
        base_mib = place.run(8192).held_mib if is_small else plain.held_mib
        print(
            f"{script.name:30} plain {base_mib:8.0f} MiB {plain.seconds:6.1f} s, "
            f"{plain.step_ms:.1f} ms a step",
            flush=True,
        )
        if plain.code != 0 or plain.digest == "none":
            print(plain.tail)
            return False
        least = script.small_percent_min if is_small else 0
        return all([_judge_cap(place, plain, base_mib, max(cap, least)) for cap in caps])
    finally:
        place.remove()


def _judge_cap(place: Place, plain: Run, base_mib: float, percent: int) -> bool:
    cap_mib = max(int(base_mib * percent / 100), 1)
    done = place.run(cap_mib)
    extra_mib = 0 if place._is_small else CONTEXT_MIB
    is_within = done.held_mib <= cap_mib + extra_mib
    is_same = done.digest == plain.digest
    words = [f"{done.step_ms:.1f} ms a step", f"rc {done.code}"]
    words.append("same weights" if is_same else "OTHER WEIGHTS")
    if not is_same and done.code == 0:
        words.append(_first_difference(plain, done))
        words.append(f"see {place.keep()}")
        again = place.run(None)
        is_sure = again.digest == plain.digest
        words.append("plain is sure" if is_sure else "plain differs from itself")
    words += [] if is_within else ["ABOVE THE CAP"]
    words += [f"order {done.order}"] if done.order is not None else []
    steps = done.digest.partition(" ")[2]
    print(
        f"{'':30} {percent:4} % {done.held_mib:8.0f} MiB of {cap_mib} {done.seconds:6.1f} s, "
        f"{steps} steps, {', '.join(words)}",
        flush=True,
    )
    if done.code != 0:
        print(done.tail, flush=True)
    return done.code == 0 and is_same and is_within


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("--device", choices=["host", "cuda"], default="host")
    parser.add_argument("--only", nargs="*", default=[""], help="words in the names of scripts")
    parser.add_argument("--caps", nargs="*", type=int, default=[60, 40], help="percent of held")
    parser.add_argument("--data", type=Path, help="a folder for inputs, kept for the next time")
    parser.add_argument("--config", type=Path, help="a settings file for SmartSwap")
    parser.add_argument("--keep", type=Path, help="a folder for what runs left that differ")
    args = parser.parse_args()
    # Told to stop, it takes the script that runs along, which would hold the device's memory.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    is_small = args.device == "host"
    data = args.data or Path(tempfile.mkdtemp(prefix="public-inputs-"))
    kept = args.keep or Path(tempfile.gettempdir())
    config = args.config.absolute() if args.config is not None else None
    folders = Folders(args.sources.absolute(), data.absolute(), kept.absolute(), config)
    inputs.make(folders.data, is_small)
    failed = []
    for script in SCRIPTS:
        if not any(word in script.name for word in args.only):
            continue
        if not (args.sources / script.file).exists():
            print(f"{script.name:30} skipped: no {script.file} in {args.sources}")
            continue
        if not judge(script, args.caps, folders, is_small):
            failed.append(script.name)
    print("failed: " + ", ".join(failed) if failed else "all right")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
