"""`verify`: bytes that change while no op writes them are found, and nothing else is."""

from processes import run

TRAINING = """
    torch.manual_seed(1)
    smartswap.enable("40MiB", device="host", min_block="64KiB", verify=VERIFY)
    layers = (torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Dropout(0.1))
    model = torch.nn.Sequential(*(copy.deepcopy(layer) for _ in range(10) for layer in layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(10):
        loss = model(torch.randn(1024, 512)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    now = smartswap.stats()
    assert now["swapped_out_bytes"] > 100 * MIB
    assert (now["verified_uses"] > 100 * step) == VERIFY, now["verified_uses"]
    print(loss.item().hex())
"""


def test_a_training_stays_as_it_is(tmp_path):
    plain = run(tmp_path, TRAINING.replace("VERIFY", "False"))
    assert run(tmp_path, TRAINING.replace("VERIFY", "True")) == plain


def test_a_write_that_nobody_tells_of_is_found(tmp_path):
    text = """
        smartswap.enable("64MiB", device="host", min_block="64KiB", verify=True, manual_steps=True)
        from smartswap import _native
        tensors = [values(seed).mul(2) for seed in range(4)]
        smartswap.step()
        # As a stray pointer would: its address is asked for where nobody looks.
        adapter = _native.adapter()
        tensors[2].add_(0)
        adapter.unwatch()
        address = tensors[2].data_ptr()
        adapter.watch_again()
        ctypes.memset(address + 4321, 0x55, 1)
        for tensor in tensors:
            tensor.sum()
        try:
            smartswap.step()
        except RuntimeError as error:
            print(error)
        # Whoever writes all of it makes it good.
        torch.mul(tensors[1], 2, out=tensors[2])
        tensors[2].sum()
        smartswap.step()
        print("done")
    """
    printed = run(tmp_path, text).splitlines()
    assert "of 4194304 bytes that aten::add_ left, aten::sum found some changed" in printed[0]
    assert "(so did 1 of the " in printed[0] and "please report it" in printed[0]
    assert printed[-1] == "done"


def test_what_others_may_write_is_left_out(tmp_path):
    text = """
        smartswap.enable("64MiB", device="host", min_block="64KiB", verify=True, manual_steps=True)
        tensors = [values(seed).mul(2) for seed in range(8)]
        arrays = [tensor.numpy() for tensor in tensors[:2]]
        arrays[0][5] = 1
        ctypes.memset(tensors[3].data_ptr(), 0x55, 4)
        torch.frombuffer(memoryview(arrays[1]), dtype=torch.float32).add_(1)
        tensors[4].untyped_storage()[7] = 3
        tensors[5].untyped_storage().fill_(0)
        tensors[6].data = tensors[7].clone()
        tensors[7].resize_(3 * MIB).untyped_storage().resize_(MIB)
        # What nobody has written yet is nobody's.
        empty = torch.empty(2 * MIB)
        empty[:MIB] = 1
        torch.save(tensors[0], "saved.pt")
        tensors[0].copy_(torch.load("saved.pt"))
        for _ in range(3):
            for tensor in tensors[:7]:
                tensor.sum()
            empty[:MIB].sum()
            smartswap.step()
        print(smartswap.stats()["verified_uses"] >= 15)
    """
    assert run(tmp_path, text) == "True\n"
