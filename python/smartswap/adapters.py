"""Which compiled adapter goes with the running PyTorch.

A package that setup.py built has the one for the PyTorch that was there. A wheel has one for each
minor; for any other PyTorch the package compiles one, once, into the user's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from .errors import IncompatibleTorchError, NotBuiltError
from .recipe import BUILT_FOR, CannotBuildError, Recipe, Torch, cuda_include_folders, folder_name

__all__ = ["folder_for"]

_log = logging.getLogger("smartswap")

# Those of pytorch.org and PyPI. Nightly builds and those of others may have other interfaces.
_RELEASE = re.compile(r"\d+\.\d+\.\d+(\+(cpu|cu\d+))?")


def folder_for(package: Path, torch: Torch) -> Path:
    """The folder with the adapter, which may be compiled now.

    Raises NotBuiltError where the package has none at all, and IncompatibleTorchError where none
    fits and none can be compiled.
    """
    if (package / BUILT_FOR).is_file():
        return package
    packed = package / "adapters"
    if not packed.is_dir():
        raise NotBuiltError(
            "the compiled part of SmartSwap is missing; in the repository run: "
            "pip install --no-build-isolation ./python"
        )
    npu = _npu_folder()
    fitting = packed / folder_name(torch)
    if npu is None and _RELEASE.fullmatch(torch.version) and (fitting / BUILT_FOR).is_file():
        return fitting
    try:
        recipe = Recipe(
            package / "csrc", package / "include", torch, cuda_include_folders(torch), npu
        )
        return _compiled(package, recipe)
    except (CannotBuildError, OSError) as error:
        beside = "" if npu is None else " with torch_npu"
        raise IncompatibleTorchError(
            f"this SmartSwap comes with adapters for releases of PyTorch {_minors(packed)}, and "
            f"none for {torch.version}{beside}; one could not be compiled: {error}"
        ) from error


def _minors(packed: Path) -> str:
    names = {folder.name.removeprefix("torch").removesuffix("-cpu") for folder in packed.iterdir()}
    return ", ".join(sorted(names, key=lambda minor: [int(part) for part in minor.split(".")]))


def _npu_folder() -> Path | None:
    found = importlib.util.find_spec("torch_npu")
    return Path(found.origin).parent if found is not None and found.origin else None


def _compiled(package: Path, recipe: Recipe) -> Path:
    """The adapter in the user's cache. Processes that start at once compile it once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smartswap"
    folder = cache / _key(package, recipe)
    if (folder / BUILT_FOR).is_file():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{folder.name}.lock"):
        if not (folder / BUILT_FOR).is_file():
            _log.warning(
                "compiling the adapter for PyTorch %s%s, once, into %s: this takes a minute",
                recipe.torch.version,
                recipe.lack(),
                folder,
            )
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                made = Path(scratch, "made")
                engine = package / "lib"
                recipe.build(engine, str(engine), Path(scratch, "objects"), made)
                # Whole or not at all, also if this process dies.
                made.rename(folder)
    return folder


def _key(package: Path, recipe: Recipe) -> str:
    """A folder's name, another one for whatever changes the adapter: the sources and where the
    engine lies among it."""
    digest = hashlib.sha256(repr([package, recipe.cuda, recipe.npu]).encode())
    for file in sorted([*recipe.sources_folder.iterdir(), *recipe.headers.iterdir()]):
        digest.update(file.read_bytes())
    tag = sys.implementation.cache_tag
    names = [version("smartswap"), f"torch{recipe.torch.version}", tag, digest.hexdigest()[:12]]
    return "-".join(names)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
