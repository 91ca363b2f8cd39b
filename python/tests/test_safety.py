"""Never a wrong number, never a crash: what once went wrong, each in a process of its own."""

from pathlib import Path

import pytest
from processes import PATIENT, python, run

HERE = Path(__file__).parent
REFUSED, SOAK = HERE / "refused_ops.py", HERE / "soak.py"


def test_an_operator_whose_inputs_do_not_fit_never_runs():
    done = python("-W", "ignore", REFUSED, "cpu")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "done"
    assert len(done.stdout.splitlines()) == 21


def test_an_operator_that_runs_all_the_same_ends_the_process():
    done = python(REFUSED, "cpu", "ignored")
    assert done.returncode < 0
    assert "it went on" not in done.stdout
    assert "the inputs of refused::ignored could not be brought back" in done.stderr
    assert "may have made wrong numbers, so the process ends here" in done.stderr


def test_blocks_just_above_the_least_that_moves(tmp_path):
    """The cap over 512 is 180 KiB: what moves begins at 128, the multiple of 64 below."""
    text = """
        smartswap.enable("90MiB", device="host")
        tensors = [torch.full((192, 192), float(seed)) for seed in range(1000)]
        arrays = [tensor.numpy() for tensor in tensors[:50]]
        assert sum(tensor.sum().item() for tensor in tensors) == 192 * 192 * 999 * 500
        assert all((array == seed).all() for seed, array in enumerate(arrays))
        torch.save(tensors, "saved.pt")
        loaded = torch.load("saved.pt")
        assert all(torch.equal(one, other) for one, other in zip(tensors, loaded))
        smartswap.step()
        assert smartswap.stats()["swapped_out_bytes"] > 64 * MIB
        print("done")
    """
    assert run(tmp_path, text) == "done\n"


def test_calls_are_kept_while_somebody_watches(tmp_path):
    text = """
        smartswap.enable("40MiB", device="host", min_block="64KiB")
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(16)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        def train(steps):
            for _ in range(steps):
                model(torch.ones(1024, 256)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            stats = smartswap.stats()
            watched = stats["reported_steps"]
            return watched, stats["recipes"]["offered"], stats["recipes"]["keeping_us"]
        watched, kept, keeping_us = train(30)
        assert 0 < watched < 30 and kept > 0 and keeping_us > 0
        assert train(10) == (watched, kept, keeping_us)
        print("done")
    """
    assert run(tmp_path, text) == "done\n"


JUMPS = """
    torch.manual_seed(1)
    if len(sys.argv) < 2:
        smartswap.enable("76MiB", device="host", config={patient!r})
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    def train(steps, batch, is_alike=True):
        for step in range(steps):
            made = model(torch.randn(batch, 256))
            for _ in range(0 if is_alike else step):
                made = made.sin()
            loss = made.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(loss.item().hex())
    is_alike = {is_alike}
    train(20 if is_alike else 30, 64, is_alike)
    if len(sys.argv) < 2:
        stats = smartswap.stats()
        assert stats["stage"] == "Stable"
        assert stats["reported_steps"] < stats["steps"], "somebody watches"
        assert stats["swapped_out_bytes"] == 0
    idle = [torch.full((4 * MIB,), float(seed)) for seed in range(3)]
    # More than is left, in one operator, while nobody watches.
    large = torch.ones(10 * MIB)
    larger = large + 1
    print(larger.sum().item(), [tensor.sum().item() for tensor in idle])
    del idle, large, larger
    for steps, batch in ((5, 64), (2, 9000), (5, 64), (2, 14000), (3, 64)):
        train(steps, batch)
    with torch.no_grad():
        print(model(torch.randn(30000, 256)).sum().item().hex())
"""


@pytest.mark.parametrize("is_alike", [True, False], ids=["alike", "no two alike"])
def test_memory_that_jumps_while_nobody_watches(tmp_path, is_alike):
    text = JUMPS.format(patient=str(PATIENT), is_alike=is_alike)
    capped = run(tmp_path, text + "    assert smartswap.stats()['swapped_out_bytes'] > 0")
    (tmp_path / "plain.py").write_text((tmp_path / "script.py").read_text().rpartition("\n")[0])
    plain = python(tmp_path / "plain.py", "plain")
    assert plain.returncode == 0, plain.stderr
    assert capped == plain.stdout


def test_safetensors_of_more_than_fits(tmp_path):
    pytest.importorskip("safetensors")
    text = """
        smartswap.enable("16MiB", device="host", min_block="64KiB")
        import safetensors.torch as files
        tensors = {str(seed): values(seed) for seed in range(8)}
        tensors |= {"half": values(9, 6000).bfloat16().view(60, 100), "one": torch.tensor(3.0)}
        tensors["none"] = torch.empty(0)
        files.save_file(tensors, "saved.safetensors")
        for loaded in (files.load_file("saved.safetensors"), files.load(files.save(tensors))):
            assert loaded.keys() == tensors.keys()
            for name, tensor in tensors.items():
                assert torch.equal(loaded[name], tensor), name
            del loaded
        try:
            files.save({"a": tensors["0"], "b": tensors["0"]})
        except RuntimeError as error:
            print("share memory" in str(error))
        smartswap.step()
        assert smartswap.stats()["swapped_out_bytes"] > 16 * MIB
        # Nothing stayed: all of it can still make room.
        torch.empty(3 * MIB)
        smartswap.disable()
        assert not hasattr(files._to_ndarray, "__wrapped__")
    """
    # Closing needs room for all.
    text = text.replace("smartswap.disable()", "del tensors, tensor; smartswap.disable()")
    assert run(tmp_path, text) == "True\n"


def test_a_pretrained_model_of_more_than_fits(tmp_path):
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    text = """
        from transformers import LlamaConfig, LlamaForCausalLM, modeling_utils
        shape = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=8, vocab_size=500)
        first = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=4)).bfloat16()
        first.save_pretrained("saved")
        warmup = modeling_utils.caching_allocator_warmup
        # Of an accelerator, all bytes are asked for at once before they are read.
        modeling_utils.is_accelerator_device = lambda device: True
        smartswap.enable("8MiB", device="host", min_block="64KiB")
        loaded = LlamaForCausalLM.from_pretrained(
            "saved", device_map={"": "cpu"}, dtype=torch.float32
        )
        for one, other in zip(first.parameters(), loaded.parameters(), strict=True):
            assert torch.equal(one.float(), other)
        smartswap.step()
        assert smartswap.stats()["swapped_out_bytes"] > 8 * MIB
        del loaded, other
        smartswap.disable()
        assert modeling_utils.caching_allocator_warmup is warmup
        print("done")
    """
    assert run(tmp_path, text) == "done\n"


SPARSE = """
    torch.manual_seed(0)
    if len(sys.argv) < 2:
        smartswap.enable("12MiB", device="host", min_block="64KiB")
    def shown(tensor):
        print(tensor.double().sum().item().hex())
    def push_out():
        others = [torch.randn(MIB // 2) for _ in range(6)]
        return [other * 2 for other in others]
    places, numbers = torch.randint(0, 500, (2, 60000)), torch.randn(60000)
    dense = torch.randn(500, 250)
    coo = torch.sparse_coo_tensor(places, numbers, (500, 500))
    push_out()
    shown(coo @ dense)
    push_out()
    csr = coo.coalesce().to_sparse_csr()
    push_out()
    shown(csr @ dense)
    push_out()
    shown(csr.values())
    shown((coo + coo).coalesce().values())
    for kind in (torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad):
        table = torch.nn.EmbeddingBag(5000, 64, sparse=True, mode="sum")
        optimizer = kind(table.parameters(), lr=0.1)
        for _ in range(6):
            loss = table(torch.randint(0, 5000, (500, 8))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            push_out()
            optimizer.step()
            print(loss.item().hex())
        shown(table.weight.detach())
"""


def test_sparse_tensors_whose_parts_are_away(tmp_path):
    capped = run(tmp_path, SPARSE + "    assert smartswap.stats()['swapped_out_bytes'] > 0")
    (tmp_path / "plain.py").write_text((tmp_path / "script.py").read_text().rpartition("\n")[0])
    plain = python("-W", "ignore", tmp_path / "plain.py", "plain")
    assert plain.returncode == 0, plain.stderr
    assert capped == plain.stdout


def test_storages_that_change_while_they_are_away(tmp_path):
    text = """
        smartswap.enable("16MiB", device="host", min_block="1MiB")
        tensors = [values(seed) for seed in range(10)]
        def away(seed):
            push = [values(20 + other).mul_(2) for other in range(4)]
            return tensors[seed].untyped_storage()
        away(0).resize_(8 * MIB)
        assert torch.equal(tensors[0], values(0))
        away(1).resize_(2 * MIB)
        tensors[1].resize_(MIB // 2)
        assert torch.equal(tensors[1], values(1)[: MIB // 2])
        away(2).byteswap(torch.float32)
        away(2).byteswap(torch.float32)
        assert torch.equal(tensors[2], values(2))
        away(3).fill_(1)
        assert bool((tensors[3].view(torch.int32) == 0x01010101).all())
        with open("raw", "wb") as file:
            away(4)._write_file(file, True, True, 4)
        with open("raw", "rb") as file:
            away(5)._set_from_file(file, 0, True, 4)
        assert torch.equal(tensors[5], values(4))
        away(6).resize_(0)
        assert tensors[6].untyped_storage().nbytes() == 0
        smartswap.step()
        assert smartswap.stats()["swapped_out_bytes"] > 64 * MIB
        print("done")
    """
    assert run(tmp_path, text) == "done\n"


def test_a_state_that_goes_on_with_each_call_though_no_schema_says_so(tmp_path):
    """As that from which cuDNN's recurrent layers draw their dropout: its old copy is of no use."""
    text = """
        import ctypes

        smartswap.enable("16MiB", device="host", min_block="1MiB")
        @torch.library.custom_op("test::draw", mutates_args=())
        def draw(x: torch.Tensor, dropout_state: torch.Tensor, train: bool) -> torch.Tensor:
            # Where no dispatcher sees it.
            state = ctypes.c_float.from_address(dropout_state.data_ptr())
            state.value += train
            return x + state.value
        state = torch.zeros(MIB // 2)
        others = [values(seed) for seed in range(10)]
        drawn = []
        for train in (True, True, False, True):
            drawn.append(draw(torch.zeros(1), state, train).item())
            for other in others:
                other.mul_(2)
        assert drawn == [1, 2, 2, 3], drawn
        smartswap.step()
        assert smartswap.stats()["swapped_out_bytes"] > 64 * MIB
        print("done")
    """
    assert run(tmp_path, text) == "done\n"


def test_a_long_run_takes_no_more_of_anything():
    """By hand, with 2,000 steps, on a GPU too: `python python/tests/soak.py cuda 2000`."""
    done = python("-W", "ignore", SOAK, "cpu", 300)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "flat"
