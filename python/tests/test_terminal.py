"""The line that says what goes on while a plan is searched: on a terminal, and nowhere else."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
import threading

from processes import PATIENT, python

ROWS, COLUMNS = 8, 100

TRAINING = """
    import torch
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(14):
        loss = model(torch.randn(1024, 512)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss of step", step, flush=True)
        if step % 2:
            print("and one line more", flush=True)
"""


class Screen:
    """What a terminal shows of what was written, and what has left it at its top."""

    def __init__(self, written: str) -> None:
        self.lines, self.history = [""] * ROWS, []
        self.row = self.column = 0
        self.saved, self.last = (0, 0), ROWS
        for code in re.findall(r"\x1b\[[\d;]*[A-Za-z]|\x1b[78]|[^\x1b]", written):
            self._take(code)

    def _take(self, code: str) -> None:
        numbers = [int(number) for number in re.findall(r"\d+", code)]
        if len(code) == 1 and code not in "\n\r":
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + code + line[self.column + 1 :]
            self.column += 1
        elif code == "\n":
            if self.row == self.last - 1:
                self.history.append(self.lines[0])
                self.lines[: self.last] = [*self.lines[1 : self.last], ""]
            else:
                self.row = min(self.row + 1, ROWS - 1)
        elif code == "\r":
            self.column = 0
        elif code == "\x1b7":
            self.saved = (self.row, self.column)
        elif code == "\x1b8":
            self.row, self.column = self.saved
        elif code[-1] == "r":
            self.last = numbers[1] if numbers else ROWS
            self.row = self.column = 0
        elif code[-1] == "H":
            self.row, self.column = numbers[0] - 1, numbers[1] - 1
        elif code == "\x1b[2K":
            self.lines[self.row] = ""
        else:
            assert code == "\x1b[1A", repr(code)
            self.row -= 1

    def all(self) -> list[str]:
        """All lines that are not empty."""
        return [line.rstrip() for line in (*self.history, *self.lines) if line.strip()]


def on_a_terminal(tmp_path, *words: str) -> str:
    """Runs Python with a terminal of its own. Returns all that it wrote there."""
    end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    written = []

    def read() -> None:
        while True:
            try:
                part = os.read(end, 4096)
            except OSError:
                return
            written.append(part)

    reader = threading.Thread(target=read)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    command = [sys.executable, *words]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=terminal, stdout=terminal, stderr=terminal
    ) as process:
        os.close(terminal)
        reader.start()
        assert process.wait(timeout=300) == 0, b"".join(written)[-2000:]
    reader.join()
    os.close(end)
    return b"".join(written).decode()


def write(tmp_path):
    """The training, and how it is run under a cap."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(TRAINING))
    flags = ["--memory", "30MiB", "--min-block", "64KiB", "--device", "host"]
    return ["-m", "smartswap", *flags, "--config", str(PATIENT), str(script)]


def test_a_terminal_shows_what_is_tried_and_then_the_scripts_lines_alone(tmp_path):
    written = on_a_terminal(tmp_path, *write(tmp_path))
    assert "smartswap: step 1, finding out what it needs" in written
    assert re.search(r"step \d+, trying plan 1 of \d+(, \d\.\d\dx)?\x1b", written), written
    due = python(str(tmp_path / "script.py")).stdout.splitlines()
    assert len(due) == 21 > ROWS
    # While it is there it is the last line, and what is above is the script's.
    changes = [found.start() for found in re.finditer(r"\x1b7\x1b\[(8;1H|r)", written)]
    assert len(changes) >= 4
    for end in changes[1:]:
        *above, last = Screen(written[:end]).all()
        assert last.startswith("smartswap: step ") and above == due[: len(above)], (above, last)
    assert Screen(written).all() == due


def test_what_is_told_is_told_once(tmp_path):
    words = write(tmp_path)
    words[2:2] = ["--log-level", "info"]
    written = on_a_terminal(tmp_path, *words)
    assert "\x1b" not in written
    shown = Screen(written).all()
    assert sum(line.startswith("smartswap: step ") for line in shown) >= 2
    assert shown[-1].startswith("smartswap: 14 steps: ")


def test_a_pipe_gets_nothing(tmp_path):
    done = python(*write(tmp_path), cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
