"""How fast host memory is made ready for a GPU, by the size of a piece, and what waits meanwhile.

    python python/benchmarks/pinning.py

A piece is touched first, as huge pages by 16 threads, and then registered with the driver. Kernels
are launched beside that; `worst_launch_ms` is the longest time between two launches while a piece
was registered, and `launch_ms` what it is without. Knows nothing of SmartSwap.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import threading
import time

import torch

GIB = 1 << 30
HUGE_BYTES = 2 << 20
PIECE_BYTES = 8 << 20
THREADS = 16
# Of madvise, by their numbers: Python has no names for them everywhere.
HUGE_PAGE, POPULATE_WRITE = 14, 23


class Pages:
    """Huge pages of this process, which are kept until it ends."""

    def __init__(self, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, size_bytes + HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.start = -(-start // HUGE_BYTES) * HUGE_BYTES
        self.size_bytes = size_bytes
        self._advise(self.start, size_bytes, HUGE_PAGE)

    def touch(self) -> float:
        """Touches them all, and returns the seconds that it took."""
        offsets = iter(range(0, self.size_bytes, PIECE_BYTES))

        def work() -> None:
            # An iterator over a range gives each number once, whoever asks.
            for offset in offsets:
                size_bytes = min(PIECE_BYTES, self.size_bytes - offset)
                self._advise(self.start + offset, size_bytes, POPULATE_WRITE)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began

    @staticmethod
    def _advise(start: int, size_bytes: int, advice: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        code = libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size_bytes), advice)
        if code != 0:
            raise OSError(ctypes.get_errno(), f"madvise {advice}")


class Launches:
    """A thread that launches kernels, and the longest time between two of them."""

    def __init__(self) -> None:
        self._value = torch.ones(1024, device="cuda")
        self._ends = False
        self._worst_s = 0.0
        self._thread = threading.Thread(target=self._launch)
        self._thread.start()

    def worst_ms(self) -> float:
        """Since the last call."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s * 1e3

    def end(self) -> None:
        """Launches no more."""
        self._ends = True
        self._thread.join()

    def _launch(self) -> None:
        last = time.perf_counter()
        while not self._ends:
            self._value.add_(1)
            now = time.perf_counter()
            self._worst_s = max(self._worst_s, now - last)
            last = now


def main() -> None:
    """Prints a line of JSON for each size."""
    register = torch.cuda.cudart().cudaHostRegister
    launches = Launches()
    # What is registered must stay mapped.
    kept = []
    for mib, count in ((256, 8), (1024, 4), (4096, 2)):
        touch_s = register_s = worst_ms = 0.0
        launches.worst_ms()
        time.sleep(0.2)
        quiet_ms = launches.worst_ms()
        for _ in range(count):
            pages = Pages(mib << 20)
            kept.append(pages)
            touch_s += pages.touch()
            time.sleep(0.05)
            launches.worst_ms()
            began = time.perf_counter()
            code = int(register(pages.start, pages.size_bytes, 0))
            register_s += time.perf_counter() - began
            if code != 0:
                raise RuntimeError(f"cudaHostRegister: {code}")
            # The launch that waited may not have been counted yet.
            time.sleep(0.05)
            worst_ms = max(worst_ms, launches.worst_ms())
        gibibytes = count * (mib << 20) / GIB
        told = {
            "mib": mib,
            "touch_gibibytes_per_s": round(gibibytes / touch_s, 1),
            "register_gibibytes_per_s": round(gibibytes / register_s, 1),
            "worst_launch_ms": round(worst_ms, 1),
            "launch_ms": round(quiet_ms, 1),
        }
        print(json.dumps(told))
    launches.end()


if __name__ == "__main__":
    main()
