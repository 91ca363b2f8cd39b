"""Builds the engine with cargo, compiles the adapter against the installed PyTorch, packs both.

SMARTSWAP_ENGINE_LIBRARY names a built libsmartswap.so, which is then taken instead of cargo's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

# Of torch_npu only the headers are needed: to load it takes a machine with Ascend's library.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch  # noqa: E402
from setuptools import setup  # noqa: E402
from torch.utils.cpp_extension import BuildExtension, CppExtension  # noqa: E402

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
HEADERS = REPOSITORY / "crates" / "bridge" / "include"
CUDA_HEADERS = ("cuda_runtime_api.h", "crt/host_defines.h")
CUDA_SOURCES = ("cuda_allocator.cpp",)
# Older ones have another interface for allocators.
CUDA_TORCH_LEAST = (2, 11)
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


def cuda_include_folders() -> list[str] | None:
    """Folders with CUDA's headers; None where PyTorch or the headers are without CUDA."""
    if torch.version.cuda is None:
        return None
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < CUDA_TORCH_LEAST:
        least = ".".join(map(str, CUDA_TORCH_LEAST))
        raise SystemExit(
            f"PyTorch {torch.__version__} is too old: for CUDA SmartSwap needs {least} or later; "
            f"pip install 'torch>={least}'"
        )
    major = torch.version.cuda.partition(".")[0]
    sites = dict.fromkeys([Path(torch.__file__).parents[1], Path(sysconfig.get_paths()["purelib"])])
    names = (f"cu{major}", "cuda_runtime", "cuda_nvcc")
    folders = [site / "nvidia" / name / "include" for site in sites for name in names]
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            folders.insert(0, Path(os.environ[name]) / "include")
    folders.append(Path("/usr/local/cuda/include"))
    for header in CUDA_HEADERS:
        if not any((folder / header).is_file() for folder in folders):
            print(f"smartswap: no {header} found, so the package is built for the CPU alone")
            return None
    return [str(folder) for folder in folders if folder.is_dir()]


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


def adapter() -> CppExtension:
    """The extension module that ties the engine to PyTorch."""
    cuda_folders = cuda_include_folders()
    npu = npu_folder()
    sources = sorted((HERE / "csrc").glob("*.cpp"))
    defines = []
    libraries = ["smartswap"]
    if cuda_folders is None:
        sources = [source for source in sources if source.name not in CUDA_SOURCES]
    else:
        defines.append(("SMARTSWAP_CUDA", None))
        libraries += ["c10_cuda", "torch_cuda"]
    include_folders = [HEADERS, HERE / "csrc", *(cuda_folders or [])]
    library_folders = []
    if npu is not None:
        npu = linked(npu)
        defines.append(("SMARTSWAP_NPU", None))
        libraries.append("torch_npu")
        library_folders.append(npu / "lib")
        headers = npu / "include"
        third_party = headers / "third_party"
        include_folders += [headers, third_party / "acl" / "inc", third_party / "hccl" / "inc"]
    return CppExtension(
        "smartswap._adapter",
        [str(source.relative_to(HERE)) for source in sources],
        include_dirs=[str(folder) for folder in include_folders],
        library_dirs=[str(folder) for folder in library_folders],
        define_macros=defines,
        libraries=libraries,
        # Without NDEBUG some of PyTorch's types have another layout.
        extra_compile_args=["-O2", "-g0", "-DNDEBUG", "-fvisibility=hidden"],
        extra_link_args=["-Wl,-rpath,$ORIGIN/lib"],
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
        has_cuda = any(name == "SMARTSWAP_CUDA" for name, _ in self.extensions[0].define_macros)
        built_for = {
            "torch": torch.__version__,
            "torch_cuda": torch.version.cuda,
            "cuda": has_cuda,
        }
        (package / "_built_for.json").write_text(json.dumps(built_for) + "\n")


FOLDERS = {"build": {"build_base": str(NPU_BUILD)}} if npu_folder() else {}

setup(ext_modules=[adapter()], cmdclass={"build_ext": Build}, options=FOLDERS)
