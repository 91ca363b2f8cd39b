"""Starts scripts from a process that has PyTorch loaded, which takes seconds otherwise."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path


def environment():
    """The variables of a script."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


class Forks:
    """A process that has PyTorch loaded, from which scripts are forked."""

    def __init__(self, *loaded):
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).parent / "fork_server.py", *loaded],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment(), "PYTHONFAULTHANDLER": "1"},
        )

    def start(self, scripts):
        """Starts scripts at once: words, `environment`, files `stdout` and `stderr`, and a folder
        `cwd` if it is another one. Returns their process ids."""
        self._process.stdin.write(json.dumps(scripts) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def wait(self, pids, patience_s):
        """Waits for what was started. Returns the exit codes."""
        reaper = threading.Timer(patience_s, lambda: [os.kill(pid, signal.SIGKILL) for pid in pids])
        reaper.start()
        codes = self._answer()
        reaper.cancel()
        return codes

    def _answer(self):
        line = self._process.stdout.readline()
        assert line, "what forks scripts has ended"
        return json.loads(line)

    def close(self):
        """Ends it."""
        self._process.stdin.close()
        self._process.wait(timeout=60)
