"""What the original's users have, under the real torch_npu: flags and settings in a Megatron-style
script, hooks in a C++ operator, memory that runs out, and collectives and streams beside it."""

import json
import os
import signal
import subprocess
import sysconfig
import textwrap
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).parent / "gated_op.cpp"
CAP_BYTES = 70 << 20
SETTINGS = """
    # How long a step takes on a busy machine must not decide what a test sees.
    slow_ratio = 1000000.0

    [smartswap]
    warmup_step = 1
    stable_step = 2
    target_mode = true
    target_memory = "70MiB"
    tensor_size_filter = "1MiB"
    policy_pref = "BETTER_MEMORY_SAVING"
    """


@pytest.fixture(scope="module")
def plain(npu):
    """The script without a flag: torch_npu's own allocator."""
    return npu.json("script_pretrain.py")


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Path:
    """Settings by the original's names."""
    file = tmp_path_factory.mktemp("settings") / "smart_swap.toml"
    file.write_text(textwrap.dedent(SETTINGS))
    return file


def assert_same(plain, capped):
    losses = capped["losses"]
    assert losses == plain["losses"][: len(losses)]
    assert plain["peak_bytes"] > 1.4 * CAP_BYTES
    assert capped["smartswap"]["limit_bytes"] == CAP_BYTES
    assert capped["ledger"]["chunk_bytes_peak"] <= CAP_BYTES
    assert capped["ledger"]["copied_out_bytes"] > CAP_BYTES
    # The script's own: nothing warms up so soon by our defaults.
    assert capped["stages"][0] == "SearchPolicy"


def test_a_megatron_script_trains_the_same_by_its_yaml_file(npu, plain, settings, tmp_path):
    arguments = {"smart_swap": True, "smart_swap_config": str(settings)}
    file = tmp_path / "arguments.yaml"
    file.write_text(json.dumps(arguments))
    capped = npu.json("script_pretrain.py", "--yaml-cfg", file)
    assert_same(plain, capped)
    assert capped["weights"] == plain["weights"]


def test_a_megatron_script_trains_the_same_by_its_flags(npu, plain, settings):
    flags = ["--adaptive-memory-optimization", "--smart-swap-config", settings]
    assert_same(plain, npu.json("script_pretrain.py", *flags, "--train-iters", 2))


def test_a_megatron_script_trains_the_same_with_the_virtual_optimizer(npu, plain, settings):
    flags = ["--virtual-optimizer", "all", "--smart-swap", "--smart-swap-config", settings]
    capped = npu.json("script_pretrain.py", *flags)
    assert_same(plain, capped)
    assert capped["weights"] == plain["weights"]
    assert not any(plain["moments_on_host"])
    assert len(capped["moments_on_host"]) == len(plain["moments_on_host"]) > 50
    assert all(capped["moments_on_host"])


@pytest.fixture(scope="module")
def operator(npu, tmp_path_factory) -> Path:
    """gated_op.cpp, compiled with the headers and libraries that a user has."""
    packages = Path(os.environ["SMARTSWAP_NPU_PACKAGES"].split(":")[0])
    standin = Path(os.environ["SMARTSWAP_NPU_STANDIN"])
    headers = packages / "torch_npu" / "include"
    include = [headers, headers / "third_party" / "acl" / "inc", packages / "smartswap" / "include"]
    include += [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    folders = [packages / "torch_npu" / "lib", packages / "smartswap" / "lib"]
    folders += [*cpp_extension.library_paths(), standin.parent]
    libraries = ("smartswap", "torch_npu", "torch_python", "torch_cpu", "c10", "ascendcl")
    built = tmp_path_factory.mktemp("operator") / "gated_op.so"
    command = ["g++", "-shared", "-fPIC", "-std=c++17", "-O1", SOURCE, "-o", built]
    command += [f"-I{folder}" for folder in include] + [f"-L{folder}" for folder in folders]
    command += [f"-l{library}" for library in libraries]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [f"-Wl,-rpath,{packages / 'smartswap' / 'lib'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return built


def test_an_operator_with_hooks_trains_the_same_under_a_cap(npu, operator):
    cap_bytes = 22 << 20
    plain = npu.json("script_hooks.py", operator)
    capped = npu.json("script_hooks.py", operator, cap_bytes)
    assert capped["digest"] == plain["digest"]
    assert plain["peak_bytes"] > 1.5 * cap_bytes
    assert capped["ledger"]["chunk_bytes_peak"] <= cap_bytes
    assert capped["ledger"]["copied_in_bytes"] > cap_bytes


def test_without_its_hooks_the_operator_faults(npu, operator):
    command = ["script_hooks.py", str(operator), str(22 << 20), "without-hooks"]
    program = f"""
        import json, subprocess, sys
        print(json.dumps(subprocess.run([sys.executable, *{command!r}]).returncode))
        """
    assert npu.json("-c", textwrap.dedent(program)) in (-signal.SIGSEGV, -signal.SIGBUS)


@pytest.mark.parametrize(("cap", "reusing"), [("104MiB", 4), ("2GiB", 10)])
def test_streams_beside_the_current_one_lose_nothing(npu, operator, cap, reusing):
    """Collectives and a side stream read and write long after their calls."""
    found = npu.json("script_streams.py", operator, cap, reusing)
    assert [(held["by"], held["blocks"]) for held in found["held"]] == [("a collective", 4)]
    is_pressed = cap == "104MiB"
    assert (found["ledger"]["chunk_bytes_peak"] <= 104 << 20) == is_pressed


@pytest.mark.parametrize("with_engine", [False, True])
def test_where_the_device_is_full_memory_moves_and_no_error_comes(npu, with_engine):
    """Nobody sets a cap: six tensors of 64 MiB on a device of 256 MiB."""
    program = f"""
        import os
        os.environ["ACL_STANDIN_MEMORY"] = "256MiB"
        import torch, torch_npu
        from standin import ledger
        if {with_engine}:
            import smartswap
            smartswap.enable(device="npu:0")
        generator = torch.Generator().manual_seed(0)
        originals = [torch.randn(16 << 20, generator=generator) for _ in range(6)]
        tensors = []
        try:
            for original in originals:
                tensors.append(original.npu())
        except torch.OutOfMemoryError as error:
            assert not {with_engine} and "NPU out of memory" in str(error)
        assert (len(tensors) == len(originals)) == {with_engine}
        if {with_engine}:
            calls = (
                (lambda: torch.empty(100 << 20, device="npu"), "400.0 MiB asked for"),
                (lambda: torch.cat(tensors), "could not be brought back"),
            )
            for call, words in calls:
                try:
                    call()
                except torch.OutOfMemoryError as error:
                    assert str(error).startswith("SmartSwap: "), error
                    assert words in str(error) and "would have helped" in str(error), error
                else:
                    raise AssertionError("it does not fit")
            assert torch.npu.memory_stats()["num_ooms"] >= 1
            tensors[0].add_(1)
            originals[0].add_(1)
        assert all(map(torch.equal, (tensor.cpu() for tensor in tensors), originals))
        assert ledger()["chunk_bytes_peak"] <= 256 << 20
        """
    npu.run("-c", textwrap.dedent(program))


def test_a_pluggable_allocator_of_the_engines_functions_runs_torch_npu(npu):
    npu.run("script_pluggable.py")
