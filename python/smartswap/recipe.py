"""How the adapter is compiled: by setup.py, for a wheel, and by the package itself.

Stands alone, as setup.py loads it before there is a package. As a script it compiles the adapter
for a PyTorch that need not be importable: `recipe.py --help`.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "BUILT_FOR",
    "OPTIONS",
    "RUN_PATH",
    "CannotBuildError",
    "Recipe",
    "Torch",
    "cuda_include_folders",
    "folder_name",
    "torch_in",
]

# Lies beside each compiled adapter and says what it was compiled for.
BUILT_FOR = "_built_for.json"
CUDA_HEADERS = ("cuda_runtime_api.h", "crt/host_defines.h")
CUDA_SOURCES = ("cuda_allocator.cpp",)
# Older ones have another interface for allocators.
CUDA_TORCH_LEAST = (2, 11)
# Without NDEBUG some of PyTorch's types have another layout.
OPTIONS = ("-O2", "-g0", "-DNDEBUG", "-fvisibility=hidden")
# Where an adapter finds the engine: beside it, or from its folder among the adapters of a wheel.
RUN_PATH = "$ORIGIN/lib:$ORIGIN/../../lib"
# Most of the time goes to PyTorch's headers, so sources share them in so many units. What includes
# headers of a device, by these names, is compiled by itself.
_UNITS = 2
_ALONE = ("cuda_", "npu_")
_COMPILERS = ("c++", "g++", "clang++")
_ERROR_LINES = 15


class CannotBuildError(RuntimeError):
    """The adapter cannot be compiled here; the text says what to install."""


class Torch(NamedTuple):
    """A PyTorch: the folder of the package, its version, and the CUDA it was built with."""

    folder: Path
    version: str
    cuda: str | None


def torch_in(folder: Path) -> Torch:
    """The PyTorch in a folder, which is read and not imported."""
    told = runpy.run_path(str(folder / "version.py"))
    return Torch(folder, str(told["__version__"]), told["cuda"])


def folder_name(torch: Torch) -> str:
    """Where a wheel has its adapter.

    One serves all releases of a minor, as their headers differ in their version alone, and all
    versions of CUDA: it links PyTorch's libraries by names without a version, finds CUDA's through
    them, and hands CUDA nothing but addresses, sizes and two kinds of copies.
    """
    minor = ".".join(torch.version.split(".")[:2])
    return f"torch{minor}" if torch.cuda else f"torch{minor}-cpu"


def cuda_include_folders(torch: Torch) -> list[str] | None:
    """Folders with CUDA's headers; None where PyTorch or the headers are without CUDA."""
    if torch.cuda is None:
        return None
    if tuple(int(part) for part in torch.version.split(".")[:2]) < CUDA_TORCH_LEAST:
        least = ".".join(map(str, CUDA_TORCH_LEAST))
        raise CannotBuildError(
            f"PyTorch {torch.version} is too old: for CUDA SmartSwap needs {least} or later; "
            f"pip install 'torch>={least}'"
        )
    major = torch.cuda.partition(".")[0]
    sites = dict.fromkeys([torch.folder.parent, Path(sysconfig.get_paths()["purelib"])])
    names = (f"cu{major}", "cuda_runtime", "cuda_nvcc")
    folders = [site / "nvidia" / name / "include" for site in sites for name in names]
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            folders.insert(0, Path(os.environ[name]) / "include")
    folders.append(Path("/usr/local/cuda/include"))
    for header in CUDA_HEADERS:
        if not any((folder / header).is_file() for folder in folders):
            return None
    return [str(folder) for folder in folders if folder.is_dir()]


class Unit(NamedTuple):
    """What the compiler is called with: a source, or a file that includes some."""

    file: Path
    sources: list[Path]


class Recipe(NamedTuple):
    """What goes into one adapter."""

    sources_folder: Path
    headers: Path
    torch: Torch
    # Folders with CUDA's headers, and that of torch_npu; None without.
    cuda: list[str] | None
    npu: Path | None

    def units(self, folder: Path) -> list[Unit]:
        """What to compile. Files that include sources are written into `folder`."""
        sources = sorted(self.sources_folder.glob("*.cpp"))
        alone = [source for source in sources if source.name.startswith(_ALONE)]
        shared = [source for source in sources if source not in alone]
        left_out = CUDA_SOURCES if self.cuda is None else ()
        units = [Unit(source, [source]) for source in alone if source.name not in left_out]
        folder.mkdir(parents=True, exist_ok=True)
        for index in range(_UNITS):
            first, end = (len(shared) * at // _UNITS for at in (index, index + 1))
            unit = Unit(folder / f"unit_{index}.cpp", shared[first:end])
            text = "".join(f'#include "{source.name}"\n' for source in unit.sources)
            # What was compiled from one that is as it was is up to date.
            if not unit.file.exists() or unit.file.read_text() != text:
                unit.file.write_text(text)
            units.append(unit)
        return units

    def lack(self) -> str:
        """A clause that says so where PyTorch has CUDA and the adapter will not; else empty."""
        if self.torch.cuda is None or self.cuda is not None:
            return ""
        return " for the CPU alone, as CUDA's headers are not found (pip install nvidia-cuda-crt)"

    def defines(self) -> list[str]:
        """The macros that switch devices on."""
        devices = {"SMARTSWAP_CUDA": self.cuda, "SMARTSWAP_NPU": self.npu}
        return [name for name, has in devices.items() if has is not None]

    def include_folders(self) -> list[str]:
        """Folders with headers of ours, of CUDA and of torch_npu."""
        folders = [str(self.headers), str(self.sources_folder), *(self.cuda or [])]
        if self.npu is not None:
            headers = self.npu / "include"
            vendor = headers / "third_party"
            folders += map(str, [headers, vendor / "acl" / "inc", vendor / "hccl" / "inc"])
        return folders

    def libraries(self) -> list[str]:
        """What is linked, besides what every extension of PyTorch is."""
        libraries = ["smartswap"]
        if self.cuda is not None:
            libraries += ["c10_cuda", "torch_cuda"]
        if self.npu is not None:
            libraries.append("torch_npu")
        return libraries

    def built_for(self) -> str:
        """What stands in the file `BUILT_FOR`."""
        torch = self.torch
        told = {"torch": torch.version, "torch_cuda": torch.cuda, "cuda": self.cuda is not None}
        return json.dumps(told) + "\n"

    def build(self, engine: Path, run_path: str, objects: Path, out: Path) -> None:
        """Compiles into the folder `objects`, and links with the engine's folder into `out`.

        What does not depend on CUDA and is there already is not compiled again. `CXXFLAGS` and
        `LDFLAGS` count. Raises CannotBuildError.
        """
        compiler = _compiler()
        headers = sysconfig.get_path("include")
        if not Path(headers, "Python.h").is_file():
            raise CannotBuildError(
                f"there is no Python.h in {headers}: install the headers of this Python (Debian "
                "and Ubuntu: apt install python3-dev; Red Hat: dnf install python3-devel)"
            )
        out.mkdir(parents=True, exist_ok=True)
        calls = {}
        for unit in self.units(objects):
            depends = any("SMARTSWAP_CUDA" in source.read_text() for source in unit.sources)
            kind = ".cuda.o" if self.cuda is not None and depends else ".o"
            target = objects / (unit.file.stem + kind)
            calls[target] = [*compiler, *self._options(), "-c", str(unit.file), "-o", str(target)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, [call for target, call in calls.items() if not target.exists()]))
        library = out / f"_adapter{sysconfig.get_config_var('EXT_SUFFIX')}"
        links = self._links(engine, run_path)
        _run([*compiler, "-shared", *map(str, calls), *links, "-o", str(library)])
        (out / BUILT_FOR).write_text(self.built_for())

    def _options(self) -> list[str]:
        torch = self.torch.folder / "include"
        api = torch / "torch" / "csrc" / "api" / "include"
        folders = [*self.include_folders(), torch, api, sysconfig.get_path("include")]
        names = [*self.defines(), "TORCH_EXTENSION_NAME=_adapter", "TORCH_API_INCLUDE_EXTENSION_H"]
        options = ["-std=c++20", "-fPIC", *OPTIONS, *(f"-D{name}" for name in names)]
        return [*options, *(f"-I{folder}" for folder in folders), *_words("CXXFLAGS")]

    def _links(self, engine: Path, run_path: str) -> list[str]:
        folders = [engine, self.torch.folder / "lib"]
        if self.npu is not None:
            folders.append(self.npu / "lib")
        names = [*self.libraries(), "c10", "torch", "torch_cpu", "torch_python"]
        options = [*(f"-L{folder}" for folder in folders), *(f"-l{name}" for name in names)]
        # What PyTorch's own libraries need may lie elsewhere.
        options += [f"-Wl,-rpath,{run_path}", "-Wl,--allow-shlib-undefined"]
        return [*options, *_words("LDFLAGS")]


def _words(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))


def _compiler() -> list[str]:
    words = _words("CXX") or [name for name in _COMPILERS if shutil.which(name)][:1]
    if not words or shutil.which(words[0]) is None:
        sought = words[0] if words else ", ".join(_COMPILERS)
        raise CannotBuildError(
            f"there is no C++ compiler ({sought}): install one (Debian and Ubuntu: apt install "
            "g++; Red Hat: dnf install gcc-c++), or name it in CXX"
        )
    return words


def _run(call: list[str]) -> None:
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode != 0:
        said = "\n".join(done.stderr.splitlines()[:_ERROR_LINES])
        raise CannotBuildError(f"{call[0]} failed with code {done.returncode}:\n{said}")


def main() -> None:
    """Compiles the adapters of one PyTorch, with CUDA and without, each into its folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--torch", type=Path, required=True, help="the folder of the package")
    parser.add_argument("--name", action="store_true", help="say its adapter's folder, no more")
    for name in ("sources", "headers", "engine", "objects", "out"):
        parser.add_argument(f"--{name}", type=Path, help="a folder")
    asked = parser.parse_args()
    torch = torch_in(asked.torch)
    if asked.name:
        print(folder_name(torch))
        return
    try:
        cuda = cuda_include_folders(torch)
        if cuda is None:
            raise CannotBuildError("a wheel needs a PyTorch with CUDA, and CUDA's headers")
        for one, folders in ((torch, cuda), (torch._replace(cuda=None), None)):
            recipe = Recipe(asked.sources, asked.headers, one, folders, None)
            recipe.build(asked.engine, RUN_PATH, asked.objects, asked.out / folder_name(one))
    except CannotBuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
