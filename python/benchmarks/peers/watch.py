"""What a device and its host have in use, read from outside the process that uses it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

PERIOD_S = 0.01


class Nvml:
    """The first NVIDIA device, by the driver's management library."""

    class _Memory(ctypes.Structure):
        _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

    def __init__(self) -> None:
        """Fails with `OSError` where there is no such library or device."""
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        self._check(self._library.nvmlInit_v2())
        find = self._library.nvmlDeviceGetHandleByIndex_v2
        self._check(find(ctypes.c_uint(0), ctypes.byref(self._device)))

    @classmethod
    def open(cls) -> Nvml | None:
        """The device; None where there is none."""
        try:
            return cls()
        except OSError:
            return None

    def used_bytes(self) -> int:
        """Device memory in use, by all processes."""
        memory = self._Memory()
        self._check(self._library.nvmlDeviceGetMemoryInfo(self._device, ctypes.byref(memory)))
        return memory.used

    @staticmethod
    def _check(code: int) -> None:
        if code != 0:
            raise OSError(f"NVML's code {code}")


def host_used_bytes(text: str) -> int:
    """Host memory that could not be given to others, from the text of `/proc/meminfo`."""
    lines = (line.split(":") for line in text.splitlines() if ":" in line)
    kib = {name: int(value.split()[0]) for name, value in lines}
    return (kib["MemTotal"] - kib["MemAvailable"]) << 10


def read_host() -> int:
    """Host memory in use now, in bytes."""
    return host_used_bytes(Path("/proc/meminfo").read_text())


class Watch:
    """The most that readings grew above their first values, between `begin` and `end`."""

    def __init__(self, readings: dict[str, Callable[[], int]]) -> None:
        self._readings = readings
        self._first = {name: read() for name, read in readings.items()}
        self._peaks: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Starts to read, many times a second."""
        self._stop.clear()
        self._peaks = dict.fromkeys(self._readings, 0)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> dict[str, int]:
        """Stops, and returns the peaks; empty where it had not begun."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
        return self._peaks

    def _watch(self) -> None:
        while True:
            for name, read in self._readings.items():
                grown = read() - self._first[name]
                self._peaks[name] = max(self._peaks[name], grown)
            if self._stop.wait(PERIOD_S):
                return
