"""Which adapter a wheel takes for a PyTorch, and how one is compiled where none fits.

The compiler is a script that notes each call, so nothing is really compiled.
"""

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
from smartswap import adapters, recipe
from smartswap.adapters import folder_for
from smartswap.errors import IncompatibleTorchError, NotBuiltError
from smartswap.recipe import BUILT_FOR, Recipe, Torch, folder_name

COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then echo "$2" >> "{log}"; echo made > "$2"; fi
  shift
done
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package as a wheel lays it out: adapters for two minors, and three sources."""
    folder = tmp_path / "smartswap"
    for name in ("torch2.11", "torch2.11-cpu", "torch2.9", "torch2.9-cpu"):
        place = folder / "adapters" / name
        place.mkdir(parents=True)
        (place / BUILT_FOR).write_text("{}")
    sources = [f"csrc/{name}.cpp" for name in ("cuda_allocator", "engine", "module")]
    for file in (*sources, "include/smartswap.h"):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("// Nothing.\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("CXX", "CXXFLAGS", "LDFLAGS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(adapters, "version", lambda _: "1.2.3")
    monkeypatch.setattr(adapters, "_npu_folder", lambda: None)
    python = tmp_path / "python"
    python.mkdir()
    (python / "Python.h").touch()
    monkeypatch.setattr(recipe.sysconfig, "get_path", lambda _: str(python))
    return folder


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """The log of a compiler that makes every file that it is asked for."""
    log = tmp_path / "compiled.log"
    script = tmp_path / "compiler"
    script.write_text(COMPILER.format(log=log))
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return log


def torch(version, cuda=None):
    return Torch(Path("/nowhere/torch"), version, cuda)


def made(log):
    return sorted(Path(line).name.partition(".")[0] for line in log.read_text().splitlines())


def test_what_setup_built_comes_first(package):
    (package / BUILT_FOR).write_text("{}")
    assert folder_for(package, torch("2.11.0")) == package


@pytest.mark.parametrize(
    ("version", "cuda", "name"),
    [
        ("2.11.0", "13.0", "torch2.11"),
        ("2.11.3+cu126", "12.6", "torch2.11"),
        ("2.11.0+cpu", None, "torch2.11-cpu"),
        ("2.9.1", None, "torch2.9-cpu"),
    ],
)
def test_releases_of_a_minor_share_its_adapter(package, version, cuda, name):
    chosen = folder_for(package, torch(version, cuda))
    assert chosen == package / "adapters" / name


def test_a_package_without_adapters_was_not_built(package):
    shutil.rmtree(package / "adapters")
    with pytest.raises(NotBuiltError, match=r"pip install --no-build-isolation \./python"):
        folder_for(package, torch("2.11.0"))


@pytest.mark.parametrize("version", ["2.16.0", "2.11.0a0+git1234", "2.11.0.dev20260101+cpu"])
def test_any_other_pytorch_gets_an_adapter_of_its_own_once(package, compiler, version):
    chosen = folder_for(package, torch(version))
    assert chosen.parent == package.parent / "cache" / "smartswap"
    assert chosen.name.startswith(f"1.2.3-torch{version}-cpython-3")
    assert made(compiler) == ["_adapter", "unit_0", "unit_1"]
    assert json.loads((chosen / BUILT_FOR).read_text()) == {
        "torch": version,
        "torch_cuda": None,
        "cuda": False,
    }
    assert folder_for(package, torch(version)) == chosen
    assert len(made(compiler)) == 3
    left = [path.name for path in chosen.parent.iterdir() if path.is_dir()]
    assert left == [chosen.name]


def test_cuda_is_compiled_in_where_its_headers_are(
    package, compiler, tmp_path, monkeypatch, caplog
):
    # One that no machine has.
    monkeypatch.setattr(recipe, "CUDA_HEADERS", ("of_this_test.h",))
    alone = folder_for(package, torch("2.16.0", "14.0"))
    assert "for the CPU alone, as CUDA's headers are not found" in caplog.text
    for header in recipe.CUDA_HEADERS:
        file = tmp_path / "cuda" / "include" / header
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    chosen = folder_for(package, torch("2.16.0", "14.0"))
    assert chosen != alone
    assert made(compiler) == ["_adapter"] * 2 + ["cuda_allocator"] + ["unit_0"] * 2 + ["unit_1"] * 2
    assert json.loads((chosen / BUILT_FOR).read_text())["cuda"] is True
    assert caplog.text.count("CPU alone") == 1


def test_each_source_is_compiled_once_and_those_of_devices_alone(tmp_path):
    folder = Path(__file__).parents[1] / "csrc"
    for cuda, left_out in ((["include"], []), (None, ["cuda_allocator.cpp"])):
        units = Recipe(folder, tmp_path, torch("2.16.0"), cuda, None).units(tmp_path)
        compiled = sorted(source for unit in units for source in unit.sources)
        wanted = [source for source in folder.glob("*.cpp") if source.name not in left_out]
        assert compiled == sorted(wanted)
        for unit in units:
            of_device = [s for s in unit.sources if s.name.startswith(("cuda_", "npu_"))]
            assert of_device in ([], [unit.file])
            if not of_device:
                included = unit.file.read_text().splitlines()
                assert included == [f'#include "{source.name}"' for source in unit.sources]
        assert len(units) < len(compiled) / 2


def test_what_is_the_same_with_cuda_and_without_is_compiled_once(package, compiler, tmp_path):
    (package / "csrc" / "module.cpp").write_text("#ifdef SMARTSWAP_CUDA\n#endif\n")
    for cuda in (["include"], None):
        one = Recipe(package / "csrc", package / "include", torch("2.16.0"), cuda, None)
        one.build(package, "", tmp_path / "objects", tmp_path / "out")
    assert made(compiler) == ["_adapter"] * 2 + ["cuda_allocator", "unit_0"] + ["unit_1"] * 2


def test_other_sources_are_compiled_again(package, compiler):
    first = folder_for(package, torch("2.16.0"))
    (package / "csrc" / "module.cpp").write_text("// Something.\n")
    assert folder_for(package, torch("2.16.0")) != first


def test_torch_npu_needs_an_adapter_of_its_own(package, compiler, tmp_path, monkeypatch):
    monkeypatch.setattr(adapters, "_npu_folder", lambda: tmp_path / "torch_npu")
    chosen = folder_for(package, torch("2.11.0"))
    assert chosen.parent == tmp_path / "cache" / "smartswap"


def choose(package, start):
    start.wait()
    folder_for(package, torch("2.16.0"))


def test_processes_that_start_at_once_compile_once(package, compiler):
    # Forked, so that they see what the fixtures have put in place.
    forks = multiprocessing.get_context("fork")
    start = forks.Barrier(4)
    ranks = [forks.Process(target=choose, args=(package, start)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * 4
    assert made(compiler) == ["_adapter", "unit_0", "unit_1"]


def test_without_a_compiler_the_error_says_what_to_install(package, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(IncompatibleTorchError) as error:
        folder_for(package, torch("2.16.0"))
    assert str(error.value) == (
        "this SmartSwap comes with adapters for releases of PyTorch 2.9, 2.11, and none for "
        "2.16.0; one could not be compiled: there is no C++ compiler (c++, g++, clang++): install "
        "one (Debian and Ubuntu: apt install g++; Red Hat: dnf install gcc-c++), or name it in CXX"
    )
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(IncompatibleTorchError, match=r"compiler \(no-such-compiler\)"):
        folder_for(package, torch("2.16.0"))


def test_without_pythons_headers_the_error_says_what_to_install(package, compiler, tmp_path):
    os.remove(tmp_path / "python" / "Python.h")
    with pytest.raises(IncompatibleTorchError, match="apt install python3-dev"):
        folder_for(package, torch("2.16.0"))


def test_what_does_not_compile_leaves_nothing_and_says_why(package, tmp_path, monkeypatch):
    script = tmp_path / "compiler"
    script.write_text("#!/bin/sh\necho no such header >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(IncompatibleTorchError, match="failed with code 3:\nno such header"):
        folder_for(package, torch("2.16.0"))
    cache = tmp_path / "cache" / "smartswap"
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_a_cache_that_cannot_be_written_is_told(package, compiler, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(IncompatibleTorchError, match="Not a directory"):
        folder_for(package, torch("2.16.0"))


def test_an_old_pytorch_with_cuda_is_refused(package, compiler):
    with pytest.raises(IncompatibleTorchError, match=r"2\.10\.0 is too old: for CUDA"):
        folder_for(package, torch("2.10.0", "12.8"))
    assert folder_name(torch("2.10.0", "12.8")) == "torch2.10"
