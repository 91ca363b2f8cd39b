"""Addresses that leave PyTorch: what stays on the device for them, how long, and who says so."""

import textwrap

import pytest
from processes import START, python, run


def run_twice(tmp_path, text):
    """Runs a script plainly and with the word `capped`. Returns what both printed."""
    script = tmp_path / "script.py"
    script.write_text(START + textwrap.dedent(text))
    plain, capped = (python(script, word, cwd=tmp_path) for word in ("plain", "capped"))
    assert plain.returncode == 0, plain.stderr
    assert capped.returncode == 0, capped.stderr
    assert plain.stdout == capped.stdout
    return plain.stdout


def test_an_operator_that_asks_for_addresses_pins_nothing(tmp_path):
    """Ten tensors of which six fit pass through a custom operator that works by address."""
    text = """
        @torch.library.custom_op("test::double", mutates_args=())
        def double(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            ctypes.memmove(out.data_ptr(), x.data_ptr(), x.nbytes)
            return out.mul_(2)

        smartswap.enable("24MiB", device="host", min_block="1MiB")
        tensors = [values(seed) for seed in range(10)]
        made = [torch.ops.test.double(tensor) for tensor in tensors]
        assert smartswap.stats()["held"] == []
        for seed, (tensor, twice) in enumerate(zip(tensors, made)):
            assert torch.equal(tensor, values(seed))
            assert torch.equal(twice, 2 * values(seed))
        smartswap.step()
        now = smartswap.stats()
        assert now["rescues"] > 0 and now["recalls"] == 0
        print(now["reserved_bytes"]["peak"] <= 24 * MIB)
    """
    assert run(tmp_path, text) == "True\n"


def test_an_address_is_good_until_the_step_ends(tmp_path):
    text = """
        smartswap.enable("24MiB", device="host", min_block="1MiB")
        tensors = [values(seed) for seed in range(4)]
        address = tensors[0].data_ptr()
        written = (ctypes.c_float * MIB).from_address(address)
        others = [values(seed) for seed in range(4, 12)]
        written[7] = 42.0
        [held] = smartswap.stats()["held"]
        assert held["until"] == "step end" and held["blocks"] == 1 and held["bytes"] == 4 * MIB
        assert held["by"].startswith("data_ptr in ") and "script.py:" in held["by"], held
        smartswap.step()
        assert smartswap.stats()["held"] == []
        del others
        others = [values(seed) for seed in range(4, 12)]
        assert tensors[0][7].item() == 42.0, "what was written by address was not lost"
        smartswap.step()
        assert smartswap.stats()["recalls"] == 0
        print("done")
    """
    assert run(tmp_path, text) == "done\n"


def test_a_table_of_all_addresses_stops_no_training(tmp_path):
    """A script that keys its parameters by address, with half of the memory that they need."""
    text = """
        def train():
            torch.manual_seed(0)
            layers = [torch.nn.Linear(512, 512) for _ in range(24)]
            model = torch.nn.Sequential(*layers)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            names = {p.data_ptr(): name for name, p in model.named_parameters()}
            for _ in range(6):
                optimizer.zero_grad()
                loss = model(torch.randn(64, 512)).square().mean()
                loss.backward()
                optimizer.step()
                assert all(p.data_ptr() in names for p in model.parameters())
            return loss.item(), [p.detach().double().sum().item() for p in model.parameters()]

        if sys.argv[1] == "capped":
            smartswap.enable("20MiB", device="host", min_block="64KiB")
        print(train())
        if sys.argv[1] == "capped":
            smartswap.step()
            now = smartswap.stats()
            assert now["recalls"] > 0 and now["reserved_bytes"]["peak"] <= 20 * MIB, now
    """
    assert "nan" not in run_twice(tmp_path, text)


def test_running_out_says_who_keeps_what(tmp_path):
    text = """
        smartswap.enable("24MiB", device="host", min_block="1MiB")
        arrays = []
        try:
            for seed in range(10):
                arrays.append(values(seed).numpy())
        except torch.OutOfMemoryError as error:
            print(error)
        held = smartswap.stats()["held"]
        assert len(held) == 1 and held[0]["until"] == "freed" and held[0]["blocks"] >= 4, held
    """
    said = run(tmp_path, text)
    assert "kept on the device for their address: " in said
    assert "numpy in " in said and "script.py:" in said and "until they are freed" in said


def test_a_model_larger_than_the_cap_saves_itself(tmp_path):
    """transformers looks for shared weights by their addresses."""
    pytest.importorskip("transformers")
    text = """
        from transformers import GPT2Config, GPT2LMHeadModel
        def digest(model):
            return [float(p.detach().double().sum()) for p in model.parameters()]
        torch.manual_seed(0)
        if sys.argv[1] == "capped":
            smartswap.enable("24MiB", device="host", min_block="256KiB")
        model = GPT2LMHeadModel(GPT2Config(n_layer=8, n_embd=256, n_head=4, vocab_size=2048))
        before = digest(model)
        model.save_pretrained(sys.argv[1])
        if sys.argv[1] == "capped":
            smartswap.step()
            assert smartswap.stats()["held"] == []
            assert smartswap.stats()["reserved_bytes"]["peak"] <= 24 * MIB
        assert digest(model) == before
        print(before)
    """
    assert run_twice(tmp_path, text)
    plain, capped = (tmp_path / way / "model.safetensors" for way in ("plain", "capped"))
    assert plain.read_bytes() == capped.read_bytes()
