"""suspend and resume: the device is for others meanwhile, and training goes on as it was."""

from processes import run

TRAINING = """
    torch.manual_seed(1)
    if CAP:
        smartswap.enable(CAP, device="host", min_block="64KiB")
    def held():
        total = 0
        for name in os.listdir("/proc/self/fd"):
            path = f"/proc/self/fd/{name}"
            if os.path.exists(path) and "npu-sys host device" in os.readlink(path):
                total += os.stat(path).st_blocks * 512
        return total
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(12):
        loss = model(torch.randn(1024, 512)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if CAP and step % 4 == 2:
            before = [parameter.data_ptr() for parameter in model.parameters()]
            with smartswap.suspended() as bytes_held:
                assert held() <= bytes_held < 2 * MIB, (held(), bytes_held)
                assert smartswap.stats()["reserved_bytes"]["current"] == bytes_held
            assert held() > 10 * MIB
            assert [parameter.data_ptr() for parameter in model.parameters()] == before
        if CAP and step == 9:
            # Nobody brings it back: what is used comes.
            smartswap.suspend()
    print(loss.item().hex(), [parameter.sum().item().hex() for parameter in model.parameters()])
"""


def test_a_training_goes_on_as_it_was_under_a_cap_and_without(tmp_path):
    plain = run(tmp_path, TRAINING.replace("CAP", "None"))
    for cap in ("36MiB", "1GiB"):
        assert run(tmp_path, TRAINING.replace("CAP", repr(cap))) == plain


def test_what_others_hold_stays_and_a_short_host_is_told_of(tmp_path):
    text = """
        smartswap.enable("64MiB", device="host", min_block="64KiB", host_memory="16MiB")
        try:
            smartswap.resume()
            tensors = [values(seed) for seed in range(3)]
            array = tensors[0].numpy()
            for tensor in tensors:
                tensor.mul_(1)
            smartswap.step()
            assert smartswap.suspend() >= array.nbytes
            assert (array == values(0).numpy()).all()
            more = [values(seed) for seed in range(3, 10)]
            smartswap.suspend()
        except RuntimeError as error:
            print(error)
        assert all(torch.equal(tensor, values(seed)) for seed, tensor in enumerate(tensors + more))
        smartswap.disable()
        try:
            smartswap.suspend()
        except smartswap.SmartSwapError as error:
            print(error)
    """
    short, closed = run(tmp_path, text).splitlines()
    assert "28.0 MiB do not fit into the host arena" in short and "--host-memory" in short
    assert "is not enabled" in closed
