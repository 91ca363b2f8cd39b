"""Flags of Megatron-style scripts, and the errors where they contradict others."""

import argparse

import pytest
import smartswap
from smartswap._native import check_torch
from smartswap.errors import IncompatibleTorchError, NotBuiltError, SettingsError
from smartswap.flags import add_arguments, check_arguments, enable_for


def parse(*words, **others):
    args = add_arguments(argparse.ArgumentParser()).parse_args(words)
    vars(args).update(others)
    return args


def test_values():
    assert parse("--virtual-optimizer", "6", "5", "all").virtual_optimizer == [6.0, 5.0, "all"]
    assert parse().virtual_optimizer is None
    assert parse("--smart-swap").smart_swap
    assert not parse().adaptive_memory_optimization


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (["--smart-swap"], {"adaptive_recompute_device_size": -1}),
        (["--virtual-optimizer", "all"], {"pipeline_model_parallel_size": 4}),
        (["--virtual-optimizer", "6", "5"], {"pipeline_model_parallel_size": 2}),
        (["--adaptive-memory-optimization"], {"ampipe_degree": 1, "recompute_method": None}),
    ],
)
def test_what_goes_together(words, others):
    check_arguments(parse(*words, **others))


@pytest.mark.parametrize(
    ("words", "others", "says"),
    [
        (["--smart-swap"], {"adaptive_recompute_device_size": 1024}, "adaptive recompute"),
        (["--smart-swap", "--adaptive-memory-optimization"], {}, "cannot be used together"),
        (["--virtual-optimizer", "1", "2"], {"pipeline_model_parallel_size": 4}, "2 values for 4"),
        (["--virtual-optimizer", "-1"], {}, "GiB from 0 up"),
        (["--virtual-optimizer", "1"], {"optimizer_selection": "fused_ema_adamw"}, "fused_ema"),
        (["--adaptive-memory-optimization"], {"ampipe_degree": 2}, "ampipe"),
        (["--adaptive-memory-optimization"], {"recompute_granularity": "full"}, "granularity"),
        (["--adaptive-memory-optimization"], {"recompute_method": "uniform"}, "method"),
        (["--adaptive-memory-optimization"], {"recompute_activation_function": True}, "activation"),
        (["--adaptive-memory-optimization"], {"swap_attention": True}, "swap-attention"),
        (["--adaptive-memory-optimization"], {"recompute_in_bubble": True}, "bubble"),
        (["--adaptive-memory-optimization"], {"memory_fragmentation": True}, "fragmentation"),
        (["--adaptive-memory-optimization"], {"adaptive_recompute_device_swap": True}, "swap"),
    ],
)
def test_contradictions_are_told(words, others, says):
    with pytest.raises(SettingsError, match=says):
        check_arguments(parse(*words, **others))


@pytest.mark.parametrize("value", ["all", 2.5, 6, [6, 5], ["all", 5]])
def test_values_of_a_yaml_file_may_stand_alone(value):
    n_stages = len(value) if isinstance(value, list) else 4
    check_arguments(argparse.Namespace(virtual_optimizer=value), n_stages)
    with pytest.raises(SettingsError, match="values for 3 pipeline stages"):
        check_arguments(argparse.Namespace(virtual_optimizer=["all", value]), 3)


def test_a_text_of_a_yaml_file_that_is_no_budget_is_told():
    with pytest.raises(SettingsError, match="GiB from 0 up"):
        check_arguments(argparse.Namespace(virtual_optimizer="most"))


def test_flags_open_the_engine_and_the_file_sets_it(tmp_path):
    file = tmp_path / "smart_swap.toml"
    file.write_text('[smartswap]\ntarget_mode = true\ntarget_memory = "48MiB"\n')
    assert not enable_for(parse("--smart-swap-config", str(file)))
    for flag in ("--smart-swap", "--adaptive-memory-optimization", "--virtual-optimizer=all"):
        args = parse(flag, "--smart-swap-config", str(file))
        try:
            assert enable_for(args, device="host")
            assert smartswap.stats()["limit_bytes"] == 48 << 20
            # Opened once, whoever asks again.
            assert enable_for(args, memory="32MiB", device="host")
            assert smartswap.stats()["limit_bytes"] == 48 << 20
        finally:
            smartswap.disable()
    with smartswap.swapping("32MiB", device="host"):
        assert enable_for(parse())
    try:
        assert enable_for(parse("--smart-swap"), memory="32MiB", device="host")
        assert smartswap.stats()["limit_bytes"] == 32 << 20
    finally:
        smartswap.disable()


def test_flags_that_contradict_others_open_nothing():
    with pytest.raises(SettingsError, match="cannot be used together"):
        enable_for(parse("--smart-swap", "--adaptive-memory-optimization"), device="host")
    assert not smartswap.is_enabled()


def test_bad_budget_is_told(capsys):
    with pytest.raises(SystemExit):
        parse("--virtual-optimizer", "most")
    assert "neither 'all' nor a number of GiB" in capsys.readouterr().err


def test_another_torch_is_told():
    built = {"torch": "2.11.0+cu130", "torch_cuda": "13.0", "cuda": True}
    check_torch(built, "2.11.0+cu130", "13.0")
    with pytest.raises(IncompatibleTorchError, match=r"too old: SmartSwap needs 2\.7"):
        check_torch(built, "2.3.1", None)
    with pytest.raises(IncompatibleTorchError, match=r"2\.12\.0 is installed; build it again"):
        check_torch(built, "2.12.0", "13.0")
    with pytest.raises(IncompatibleTorchError, match=r"for CUDA 12\.8"):
        check_torch(built, "2.11.0+cu130", "12.8")


def test_a_package_that_was_not_built_is_told(monkeypatch, tmp_path):
    from smartswap import _native

    monkeypatch.setattr(_native, "FOLDER", tmp_path)
    _native._adapter_folder.cache_clear()
    with pytest.raises(NotBuiltError, match="pip install"):
        _native.built_for()
