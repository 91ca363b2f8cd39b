"""Builds the engine with cargo, compiles the adapter against the installed PyTorch, packs both.

SMARTSWAP_ENGINE_LIBRARY names a built libsmartswap.so, which is then taken instead of cargo's.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

# Of torch_npu only the headers are needed: to load it takes a machine with Ascend's library.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch  # noqa: E402
from setuptools import setup  # noqa: E402
from torch.utils.cpp_extension import BuildExtension, CppExtension  # noqa: E402

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
HEADERS = REPOSITORY / "crates" / "bridge" / "include"
# What is compiled for torch_npu stays apart, so that neither build undoes the other.
NPU_BUILD = HERE / "build" / "npu"


def engine_library() -> tuple[Path, Path | None]:
    """The engine's library, and its command line unless a library was named that lies alone."""
    prebuilt = os.environ.get("SMARTSWAP_ENGINE_LIBRARY")
    if prebuilt:
        library = Path(prebuilt).resolve()
        if not library.is_file():
            raise SystemExit(f"SMARTSWAP_ENGINE_LIBRARY: there is no file '{library}'")
    else:
        if shutil.which("cargo") is None:
            raise SystemExit(
                "SmartSwap needs cargo to build its engine: install Rust (https://rustup.rs), or "
                "name a built library in SMARTSWAP_ENGINE_LIBRARY"
            )
        build = ["cargo", "build", "--release", "--locked", "-p", "bridge", "-p", "cli"]
        subprocess.run(build, cwd=REPOSITORY, check=True)
        target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
        library = (REPOSITORY / target / "release" / "libsmartswap.so").resolve()
    program = library.parent / "smartswap"
    return library, program if program.is_file() else None


def shared_recipe() -> ModuleType:
    """What the package itself knows of compiling, which is not installed yet."""
    spec = importlib.util.spec_from_file_location("recipe", HERE / "smartswap" / "recipe.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def npu_folder() -> Path | None:
    """The folder of torch_npu, whose headers and library the adapter then uses; else None."""
    found = importlib.util.find_spec("torch_npu")
    return Path(found.origin).parent if found is not None and found.origin else None


def linked(npu: Path) -> Path:
    """A link to torch_npu. Under one name the compiler's calls are alike for each release, so only
    what includes its headers is compiled again for another one."""
    link = NPU_BUILD / "torch_npu"
    if link.resolve() != npu.resolve():
        for stale in (link, *NPU_BUILD.glob("temp*/csrc/npu_*.o")):
            stale.unlink(missing_ok=True)
        NPU_BUILD.mkdir(parents=True, exist_ok=True)
        link.symlink_to(npu)
    return link


def recipe() -> NamedTuple:
    """What goes into the adapter for the installed PyTorch."""
    installed = SHARED.Torch(
        Path(torch.__file__).parent, str(torch.__version__), torch.version.cuda
    )
    try:
        cuda_folders = SHARED.cuda_include_folders(installed)
    except SHARED.CannotBuildError as error:
        raise SystemExit(str(error)) from error
    npu = npu_folder()
    return SHARED.Recipe(
        HERE / "csrc", HEADERS, installed, cuda_folders, None if npu is None else linked(npu)
    )


def adapter(recipe: NamedTuple) -> CppExtension:
    """The extension module that ties the engine to PyTorch."""
    units = recipe.units((HERE / "build" if recipe.npu is None else NPU_BUILD) / "units")
    return CppExtension(
        "smartswap._adapter",
        [str(unit.file.relative_to(HERE)) for unit in units],
        include_dirs=recipe.include_folders(),
        library_dirs=[] if recipe.npu is None else [str(recipe.npu / "lib")],
        define_macros=[(name, None) for name in recipe.defines()],
        libraries=recipe.libraries(),
        extra_compile_args=list(SHARED.OPTIONS),
        extra_link_args=[f"-Wl,-rpath,{SHARED.RUN_PATH}"],
    )


class Build(BuildExtension):
    """Builds the engine before the adapter, which links with it."""

    def run(self) -> None:
        """Lays out the package: library, headers, command line, and what it was built for."""
        library, program = engine_library()
        package = (HERE if self.inplace else Path(self.build_lib).resolve()) / "smartswap"
        (package / "lib").mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, package / "lib" / "libsmartswap.so")
        # One of an earlier build would be of other sources.
        shutil.rmtree(package / "bin", ignore_errors=True)
        if program is not None:
            (package / "bin").mkdir(exist_ok=True)
            shutil.copy2(program, package / "bin" / "smartswap")
        shutil.copytree(HEADERS, package / "include", dirs_exist_ok=True)
        # What was compiled for another PyTorch, or without CUDA, looks up to date.
        self.force = True
        for extension in self.extensions:
            extension.library_dirs.append(str(package / "lib"))
        super().run()
        (package / SHARED.BUILT_FOR).write_text(RECIPE.built_for())


SHARED = shared_recipe()
RECIPE = recipe()
if RECIPE.lack():
    print(f"smartswap: the package is built{RECIPE.lack()}")
FOLDERS = {"build": {"build_base": str(NPU_BUILD)}} if npu_folder() else {}

setup(ext_modules=[adapter(RECIPE)], cmdclass={"build_ext": Build}, options=FOLDERS)
