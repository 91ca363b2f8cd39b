"""The real torch_npu over the stand-in: what it computes, and that it trains under a cap."""

import textwrap

import pytest

STEPS = 18


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


def test_a_variable_opens_the_engine_when_the_device_is_first_used(npu):
    """PyTorch loads torch_npu and this package by itself, in whichever order."""
    program = """
        import os, sys
        os.environ |= {"SMARTSWAP_MEMORY": "256MiB", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
        import torch
        from standin import ledger
        smartswap = sys.modules["smartswap"]
        assert "torch_npu" in sys.modules and not smartswap.is_enabled()
        tensors = [torch.full((16 << 20,), float(index), device="npu") for index in range(10)]
        assert smartswap.is_enabled() and smartswap.engine.device() == tensors[0].device
        assert [int(tensor[-1]) for tensor in tensors] == list(range(10))
        held = ledger()
        assert held["chunk_bytes_peak"] <= 256 << 20 < held["copied_out_bytes"], held
        """
    npu.run("-c", textwrap.dedent(program))


def test_without_one_address_for_both_swapped_memory_is_refused_with_what_to_do_instead(npu):
    """torch_npu copies with the library's own copies, which may not use an address that only the
    device has for host memory: only kernels may."""
    program = """
        import os
        os.environ["ACL_STANDIN_VA_FLAG"] = "off"
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


def test_tensors_in_swapped_memory_are_like_any_other(npu):
    """Made, filled, copied each way, viewed, computed with, saved and freed; four times the cap
    lies on the host."""
    program = """
        import io
        import torch, torch_npu, smartswap
        from standin import ledger
        smartswap.enable("128MiB", host_memory="768MiB", device="npu:0")
        tensors = [smartswap.empty_with_swapped_memory((1 << 20, 16)) for _ in range(8)]
        held = ledger()
        assert held["chunk_bytes"] == 0, held
        assert held["pinned_bytes"] >= 512 << 20, held
        # All of it is what the device and its copies reach: nothing of ours is registered.
        assert held["registered_bytes"] == 0, held
        first, second = tensors[:2]
        assert str(first.device) == "npu:0" and smartswap.is_swap_tensor(first[5:, 3])
        assert torch.equal(first.zero_()[-3:].cpu(), torch.zeros(3, 16))
        values = torch.randn(1 << 20, 16, generator=torch.Generator().manual_seed(0))
        second.copy_(values)
        assert torch.equal(second.cpu(), values)
        first.copy_(second)
        assert torch.equal(first.cpu(), values)
        on_device = second[:1000].clone()
        assert not smartswap.is_swap_tensor(on_device)
        first[1000:2000].copy_(on_device)
        assert torch.equal(first[1000:2000].cpu(), values[:1000])
        part = first[:4096].add_(second[:4096], alpha=2).mul_(0.5)
        assert torch.allclose(part.cpu()[:1000], values[:1000] * 1.5)
        assert torch.equal(second[:, 3][:7].cpu(), values[:7, 3])
        file = io.BytesIO()
        small = smartswap.empty_with_swapped_memory((2, 3), dtype=torch.int32).fill_(7)
        torch.save(small, file)
        file.seek(0)
        assert torch.equal(torch.load(file).cpu(), torch.full((2, 3), 7, dtype=torch.int32))
        # What is freed is used again: there is no room for more.
        del first, second, part, tensors
        again = [smartswap.empty_with_swapped_memory((1 << 20, 16)) for _ in range(8)]
        assert torch.equal(again[7].zero_()[-3:].cpu(), torch.zeros(3, 16))
        """
    npu.run("-c", textwrap.dedent(program))


def test_a_suspended_training_leaves_the_device_to_others(npu, plain):
    """Its own ledger says what is left there; the losses stay those of the training alone."""
    program = """
        import torch_npu
        import smartswap
        smartswap.enable(CAP, device="npu:0", min_block="64KiB")
        from standin import DEVICE, Training, ledger
        training = Training(DEVICE, dropout=0.1)
        for step in range(6):
            print(training.step().hex())
            if step % 2 == 1:
                in_use_bytes = smartswap.stats()["active_bytes"]["current"]
                with smartswap.suspended() as held_bytes:
                    assert ledger()["chunk_bytes"] == held_bytes < 8 << 20, (ledger(), held_bytes)
                # What was there comes back.
                assert ledger()["chunk_bytes"] >= in_use_bytes > 8 << 20, (ledger(), in_use_bytes)
        assert ledger()["chunk_bytes_peak"] <= CAP
        """
    cap_bytes = plain["peak_bytes"] * 60 // 100
    done = npu.run("-c", textwrap.dedent(program).replace("CAP", str(cap_bytes)))
    due = [step["loss"] for step in plain["steps"][:6]]
    assert [line for line in done.stdout.splitlines() if line.startswith("0x")] == due


def test_tensors_outside_count_towards_the_cap(npu, plain):
    """The device's ledger has both, and the losses stay those of the training alone."""
    program = """
        import torch
        import torch_npu
        import smartswap
        smartswap.enable(CAP, device="npu:0", min_block="64KiB")
        from standin import DEVICE, Training, ledger
        training = Training(DEVICE, dropout=0.1)
        owns = smartswap._native.adapter().owns
        kept = []
        for step in range(6):
            print(training.step().hex())
            with smartswap.outside():
                kept.append(torch.full((1 << 17,), float(step), device=DEVICE))
            ours = torch.ones(9, device=DEVICE)
            assert not owns(kept[-1].data_ptr()) and owns(ours.data_ptr())
        assert all((one == step).all().item() for step, one in enumerate(kept))
        outside_bytes = smartswap.stats()["outside_bytes"]
        assert outside_bytes in (4 << 20, 6 << 20), outside_bytes
        held_bytes = smartswap.stats()["reserved_bytes"]["current"]
        assert held_bytes == ledger()["chunk_bytes"], (held_bytes, ledger())
        kept.clear()
        training.step()
        assert smartswap.stats()["outside_bytes"] == 0, smartswap.stats()
        with smartswap.outside():
            try:
                torch.empty(CAP, dtype=torch.uint8, device=DEVICE)
            except torch.OutOfMemoryError as error:
                assert "more than the cap" in str(error), error
            else:
                raise AssertionError("it does not fit beside the weights that are in use")
        assert smartswap.stats()["outside_bytes"] == 0
        training.step()
        assert ledger()["chunk_bytes_peak"] <= CAP
        """
    cap_bytes = plain["peak_bytes"] * 60 // 100
    done = npu.run("-c", textwrap.dedent(program).replace("CAP", str(cap_bytes)))
    due = [step["loss"] for step in plain["steps"][:6]]
    assert [line for line in done.stdout.splitlines() if line.startswith("0x")] == due


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


@pytest.fixture(scope="module")
def plain(npu):
    """The training with torch_npu's own allocator."""
    found = npu.json("script_train.py", STEPS)
    assert found["ledger"]["chunk_bytes_peak"] > found["peak_bytes"] - (2 << 20)
    return found


def train(npu, plain, percent: int, *words, begin: int = 0):
    """A training under so many percent of the peak, with the same bits as the one without."""
    cap_bytes = plain["peak_bytes"] * percent // 100
    capped = npu.json("script_train.py", STEPS - begin, "--cap", cap_bytes, *words)
    assert capped["ledger"]["chunk_bytes_peak"] <= cap_bytes
    steps = capped["steps"]
    same = plain["steps"][begin : begin + len(steps)]
    assert [step["loss"] for step in steps] == [step["loss"] for step in same]
    assert steps[-1]["weights"] == same[-1]["weights"]
    return capped


def stable(capped) -> tuple[dict, dict]:
    """The first and the last Stable step, without a miss or a rescue between."""
    steps = [step for step in capped["steps"] if step["stage"] == "Stable"]
    assert len(steps) >= 3
    first, last = steps[0], steps[-1]
    assert (last["misses"], last["rescues"]) == (first["misses"], first["rescues"])
    return first, last


@pytest.mark.parametrize("percent", [60, 40])
def test_a_gpt_trains_the_same_with_swaps(npu, plain, percent):
    first, last = stable(train(npu, plain, percent))
    # The engine's plan, and the device's own count of the copies.
    for counter in ("swapped_out_bytes", "copied_out_bytes"):
        assert last[counter] > first[counter]


def test_a_gpt_trains_the_same_with_recompute(npu, plain):
    capped = train(npu, plain, 72, "--settings", "recompute.toml")
    first, last = stable(capped)
    assert last["recomputed_ops"] > first["recomputed_ops"]
    assert "aten::native_dropout" in capped["remade"]
    # By the device's own count next to nothing is copied, so what is away is nowhere.
    assert last["copied_out_bytes"] - first["copied_out_bytes"] < 4 << 20


def assert_virtual(plain, capped):
    """All moments lie on the host and none did before."""
    assert not any(plain["moments_on_host"])
    assert len(capped["moments_on_host"]) == len(plain["moments_on_host"]) > 50
    assert all(capped["moments_on_host"])


def test_a_gpt_trains_the_same_with_the_virtual_optimizer(npu, plain):
    capped = train(npu, plain, 50, "--virtual-optimizer", "all")
    first, last = stable(capped)
    assert last["swapped_out_bytes"] > first["swapped_out_bytes"]
    assert_virtual(plain, capped)


def test_a_virtual_optimizer_is_saved_and_resumed(npu, plain, tmp_path):
    file = tmp_path / "checkpoint.pt"
    words = ("--virtual-optimizer", "all")
    saved = train(npu, plain, 50, *words, "--save", file)["steps"]
    begin = 1 + next(at for at, step in enumerate(saved) if "saved" in step)
    assert_virtual(plain, train(npu, plain, 50, *words, "--resume", file, begin=begin))


def test_another_release_of_torch_npu_trains_the_same(other_npu, plain):
    capped = train(other_npu, plain, 50, "--virtual-optimizer", "all")
    assert capped["torch_npu"] != plain["torch_npu"]
    stable(capped)
    assert_virtual(plain, capped)


def test_a_training_is_saved_and_resumed_under_a_cap(npu, plain, tmp_path):
    file = tmp_path / "checkpoint.pt"
    saved = train(npu, plain, 60, "--save", file)["steps"]
    begin = 1 + next(at for at, step in enumerate(saved) if "saved" in step)
    assert begin < len(saved)
    resumed = train(npu, plain, 50, "--resume", file, begin=begin)
    first, last = stable(resumed)
    assert last["swapped_out_bytes"] > first["swapped_out_bytes"]


def test_what_operators_made_comes_back_to_the_bit(npu):
    """Each output is dropped and used: views, storages of other shapes and dropout's among them."""
    program = """
        import torch, torch_npu, smartswap
        from smartswap import _native
        from torch.nn import functional as F
        smartswap.enable("64MiB", device="npu:0", min_block="1MiB", manual_steps=True)
        adapter = _native.adapter()
        adapter.set_aside(2)
        x = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0)).npu()
        cases = {
            "product of a transposed": lambda: x.t() @ x,
            "every second column": lambda: x[:, ::2] * 2,
            "transposed": lambda: x.t().contiguous(),
            "rows joined": lambda: torch.cat([x[5:], x[:9]]),
            "softmax": lambda: x.view(2, 512, 1024).softmax(-1),
            "dropout": lambda: F.dropout(x, 0.25),
        }
        for name, case in cases.items():
            # Each kind of call is found to give the same bits first, those inside others too.
            case(), case()
            made = case()
            kept, state = made.clone(), torch.npu.get_rng_state()
            runs = adapter.recipes()["runs"]
            assert adapter.discard(made), name
            assert torch.equal(made, kept), name
            assert torch.equal(torch.npu.get_rng_state(), state), name
            assert adapter.recipes()["runs"] == runs + 1, name
        """
    npu.run("-c", textwrap.dedent(program))


def test_dropout_draws_what_its_generator_says(npu):
    program = """
        import torch, torch_npu
        from torch.nn.functional import dropout
        x = torch.ones(300, 300, device="npu").requires_grad_()
        torch.manual_seed(3)
        first, second = dropout(x, 0.25), dropout(x, 0.25)
        torch.manual_seed(3)
        assert torch.equal(first, dropout(x, 0.25)) and not torch.equal(first, second)
        kept = first.detach().cpu()
        assert set(kept.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
        assert abs((kept != 0).float().mean() - 0.75) < 0.01
        first.sum().backward()
        assert torch.equal(x.grad.cpu(), kept)
        """
    npu.run("-c", textwrap.dedent(program))
