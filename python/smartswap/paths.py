"""Where the headers and the library lie, for authors of C++ operators."""

from __future__ import annotations

from ._native import FOLDER
from .errors import NotBuiltError

__all__ = ["include_path", "library_path"]


def include_path() -> str:
    """The folder with smartswap.h and NPUSwapManager.h, for `include_dirs`."""
    return str(FOLDER / "include")


def library_path() -> str:
    """The folder with libsmartswap.so, for `-L` and `-Wl,-rpath`; link with `-lsmartswap`.

    Raises NotBuiltError if the package was not built.
    """
    folder = FOLDER / "lib"
    if not (folder / "libsmartswap.so").is_file():
        raise NotBuiltError(
            "libsmartswap.so is missing; in the repository run: "
            "pip install --no-build-isolation ./python"
        )
    return str(folder)
