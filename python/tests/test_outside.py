"""outside: tensors in plain memory of PyTorch's own, beside those that move."""

import textwrap

from processes import run

# Whether memory is the software device's, by the system's own list.
MAPS = """
    def is_of_device(tensor):
        address = tensor.untyped_storage().data_ptr()
        for line in open("/proc/self/maps"):
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if first <= address < last:
                return "npu-sys host device" in line or smartswap._native.adapter().owns(address)
        raise AssertionError(f"{address:#x} is not memory")
"""

TRAINING = """
    torch.manual_seed(1)
    if CAP:
        smartswap.enable(CAP, device="host", min_block="64KiB", strategy="STRATEGY")
    class Outside(torch.nn.Module):
        def forward(self, x):
            with smartswap.outside():
                return (x * 1.5).tanh() @ torch.eye(512)
    layers = [torch.nn.Linear(512, 512) for _ in range(10)]
    model = torch.nn.Sequential(*layers[:5], Outside(), *layers[5:])
    with smartswap.outside():
        frozen = torch.nn.Linear(512, 512).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    address = frozen.weight.data_ptr()
    for step in range(12):
        loss = frozen(model(torch.randn(1024, 512))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert frozen.weight.data_ptr() == address
    if CAP:
        now = smartswap.stats()
        assert now["swapped_out_bytes"] + now["recomputed_ops"] > 0, now
        assert not smartswap._native.adapter().owns(address)
    print(loss.item().hex(), [parameter.sum().item().hex() for parameter in model.parameters()])
"""


def test_tensors_made_outside_are_plain_memory_that_does_not_count(tmp_path):
    text = """
        import threading
        with smartswap.outside():
            assert torch.ones(3).sum() == 3, "without an engine it does nothing"
        smartswap.enable("16MiB", device="host", min_block="64KiB")
        moving = values(1)
        before = smartswap.stats()
        with smartswap.outside():
            plain = values(2, 32 * MIB)
            with smartswap.outside():
                small = torch.zeros(10)
            nested = torch.ones(MIB)
            made_elsewhere = []
            thread = threading.Thread(target=lambda: made_elsewhere.append(values(3)))
            thread.start()
            thread.join()
        after = smartswap.stats()
        for name in ("requested_bytes", "reserved_bytes"):
            grew = after[name]["current"] - before[name]["current"]
            assert grew <= 3 * MIB * 4, (name, grew)
        assert not any(map(is_of_device, (plain, small, nested)))
        assert is_of_device(moving) and is_of_device(made_elsewhere[0]), "other threads' move"
        try:
            with smartswap.outside():
                raise KeyError("in there")
        except KeyError:
            pass
        assert is_of_device(torch.ones(MIB)), "after an error as well"
        # Operators mix both, and other results are the engine's.
        with smartswap.outside():
            due = values(2, 32 * MIB)
        others = [values(seed) for seed in range(4, 10)]
        total = plain[:MIB] + moving
        now = smartswap.stats()
        assert now["active_bytes"]["current"] < now["allocated_bytes"]["current"], "some are away"
        assert is_of_device(total)
        with smartswap.outside():
            assert torch.equal(total, due[:MIB] + values(1)) and torch.equal(plain, due)
        del others, made_elsewhere
        smartswap.disable()
        assert torch.equal(plain, due)
        print("done")
    """
    assert run(tmp_path, textwrap.dedent(MAPS) + textwrap.dedent(text)) == "done\n"


def test_a_training_that_mixes_both_computes_the_same(tmp_path):
    plain = run(tmp_path, TRAINING.replace("CAP", "None"))
    for strategy in ("swap", "recompute"):
        capped = TRAINING.replace("STRATEGY", strategy).replace("CAP", repr("44MiB"))
        assert run(tmp_path, capped) == plain


def test_another_process_writes_what_this_one_reads(tmp_path):
    text = """
        import torch.multiprocessing as multiprocessing
        def fill(tensor, done):
            tensor.add_(1)
            done.put(float(tensor.sum()))
        if __name__ == "__main__":
            smartswap.enable("16MiB", device="host", min_block="64KiB")
            with smartswap.outside():
                shared = torch.arange(MIB, dtype=torch.float32)
            due = float((torch.arange(MIB, dtype=torch.float32) + 1).sum())
            context = multiprocessing.get_context("spawn")
            done = context.Queue()
            child = context.Process(target=fill, args=(shared, done))
            child.start()
            assert done.get(timeout=120) == due
            child.join()
            assert float(shared.sum()) == due and shared.is_shared()
            others = [values(seed) for seed in range(6)]
            assert float(shared.sum()) == due
            print(smartswap.stats()["held"])
    """
    assert run(tmp_path, text) == "[]\n"
