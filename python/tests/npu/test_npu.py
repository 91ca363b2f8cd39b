"""The real torch_npu over the stand-in: what it computes, and that it trains under a cap."""

import textwrap

import pytest

STEPS = 24
SETTINGS = "settled.toml"


def test_tensors_live_under_a_cap_whatever_woke_torch_npu(npu):
    """The engine is enabled first, which wakes torch_npu, and holds ten tensors of 64 MiB."""
    program = """
        import torch, torch_npu, smartswap
        from standin import ledger
        smartswap.enable("256MiB", device="npu:0")
        generator = torch.Generator().manual_seed(0)
        originals = [torch.randn(16 << 20, generator=generator) for _ in range(10)]
        tensors = [original.npu() for original in originals]
        assert all(tensor.device == torch.device("npu:0") for tensor in tensors)
        assert all(map(torch.equal, (tensor.cpu() for tensor in tensors), originals))
        held = ledger()
        assert held["chunk_bytes_peak"] <= 256 << 20, held
        assert held["copied_out_bytes"] > 384 << 20, held
        """
    npu.run("-c", textwrap.dedent(program))


def test_swapped_memory_is_refused_with_what_to_do_instead(npu):
    """torch_npu keeps more beside a storage than PyTorch makes around memory of the host."""
    program = """
        import torch, torch_npu, smartswap
        smartswap.enable("64MiB", device="npu:0")
        optimizer = torch.optim.AdamW([torch.ones(8, device="npu").requires_grad_()])
        calls = (
            lambda: smartswap.virtual_optimizer(optimizer, "all"),
            lambda: smartswap.empty_with_swapped_memory(8),
        )
        for call in calls:
            try:
                call()
            except smartswap.errors.SettingsError as error:
                assert "prefer='memory'" in str(error)
            else:
                raise AssertionError("not refused")
        """
    npu.run("-c", textwrap.dedent(program))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_operators_compute_what_the_cpu_computes(npu, dtype):
    found = npu.json("script_operators.py", dtype)
    assert found["differing"] == {}
    assert found["compared"] > 50


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_losses_are_those_of_the_cpu(npu, dtype):
    found = npu.json("script_losses.py", dtype)
    assert len(found["npu"]) == len(found["cpu"]) == 3
    assert found["npu"] == pytest.approx(found["cpu"], rel=1e-5 if dtype == "float32" else 1e-2)
    assert len(set(found["npu"])) == 3


def test_a_gpt_trains_the_same_under_a_cap(npu):
    plain = npu.json("script_train.py", STEPS)
    assert plain["ledger"]["chunk_bytes_peak"] > plain["peak_bytes"] - (2 << 20)
    for percent in (60, 40):
        cap_bytes = plain["peak_bytes"] * percent // 100
        capped = npu.json("script_train.py", STEPS, cap_bytes, SETTINGS)
        assert capped["ledger"]["chunk_bytes_peak"] <= cap_bytes
        steps = capped["steps"]
        same = plain["steps"][: len(steps)]
        assert [step["loss"] for step in steps] == [step["loss"] for step in same]
        assert steps[-1]["weights"] == same[-1]["weights"]
        stable = [step for step in steps if step["stage"] == "Stable"]
        assert len(stable) >= 3
        first, last = stable[0], stable[-1]
        assert (last["misses"], last["rescues"]) == (first["misses"], first["rescues"])
        # The engine's plan, and the device's own count of the copies.
        for counter in ("swapped_out_bytes", "copied_out_bytes"):
            assert last[counter] > first[counter]
