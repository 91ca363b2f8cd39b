"""What runs inside an operator is watched wherever it may use more than the operator was given.

Under the cap of each script, `hidden` is away when an operator begins that was not given it. A use
that nobody tells of would read memory that is not there, and end the process.
"""

import textwrap

from processes import PATIENT, run

PREPARED = """
    smartswap.enable("24MiB", device="host", min_block="64KiB")
    hidden = torch.full((2 * MIB,), 3.0)
    small = torch.full((64 * 1024,), 0.25)

    def send_away():
        assert torch.ones(5 * MIB).sum().item() == 5 * MIB

    def arrived():
        smartswap.step()
        return smartswap.stats()["swapped_in_bytes"]

    send_away()
    before = arrived()
"""


TRAINS_UNDER = f"""
    def trains_under(cap, min_block, train, least, first):
        plain = train(lambda: None)
        smartswap.enable(cap, device="host", min_block=min_block, config={str(PATIENT)!r})
        stats = []
        assert train(lambda: stats.append(smartswap.stats())) == plain
        stable = [each for each in stats if each["stage"] == "Stable"]
        assert len(stable) > least, [each["stage"] for each in stats]
        start, end = stable[first], stable[-1]
        assert end["swapped_out_bytes"] + end["recomputed_ops"] > start["swapped_out_bytes"]
        assert end["misses"] == start["misses"], (start, end)
        assert end["rescues"] == start["rescues"], (start, end)
"""


def test_hooks_of_saved_tensors(tmp_path):
    text = PREPARED + """
    def pack(tensor):
        sums.append(hidden.sum().item())
        return tensor
    sums = []
    given = small.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made = given.exp()
    assert sums == [3.0 * 2 * MIB], sums
    assert arrived() > before
    print("done")
    """
    assert run(tmp_path, text) == "done\n"


def test_kernels_that_a_script_registers(tmp_path):
    """One that is called by the script, and one that PyTorch calls inside another operator."""
    text = PREPARED + """
    def add_hidden(*given, **_):
        return torch.full((4,), hidden.sum().item())
    library = torch.library.Library("aten", "IMPL")
    library.impl("frac", add_hidden, "CPU")
    assert torch.frac(small).tolist() == [3.0 * 2 * MIB] * 4
    assert arrived() > before
    send_away()
    before = arrived()
    library.impl("empty_like", add_hidden, "CPU")
    assert torch.ops.aten.full_like(small[:4], 5.0).tolist() == [5.0] * 4
    assert arrived() > before
    print("done")
    """
    assert run(tmp_path, text) == "done\n"


def test_kernels_that_were_registered_before(tmp_path):
    text = """
    library = torch.library.Library("aten", "IMPL")
    def add_hidden(*given, **_):
        return torch.full((4,), hidden.sum().item())
    library.impl("empty_like", add_hidden, "CPU")
    """ + PREPARED + """
    assert torch.ops.aten.full_like(small[:4], 5.0).tolist() == [5.0] * 4
    assert arrived() > before
    print("done")
    """
    assert run(tmp_path, text) == "done\n"


def test_operators_of_a_script_are_watched_themselves(tmp_path):
    """Defined before or while the engine is open. PyTorch 2.14 and later call them directly."""
    text = """
    from torch.profiler import profile

    def doubled(name):
        @torch.library.custom_op(f"own::{name}", mutates_args=())
        def double(x: torch.Tensor) -> torch.Tensor:
            return x + x
        return double

    def is_direct(operator):
        asked = getattr(operator._opoverload, "_is_pyobj_dispatcher_enabled", None)
        return asked is not None and asked()

    early = doubled("early")
    was_direct = is_direct(early)
    smartswap.enable("24MiB", device="host", min_block="64KiB")
    late = doubled("late")
    with profile() as profiled:
        for operator in (early, late):
            assert operator(torch.ones(2)).tolist() == [2.0, 2.0]
    seen = {event.name for event in profiled.events()}
    assert {"own::early", "own::late"} <= seen, seen
    smartswap.disable()
    assert is_direct(early) == is_direct(late) == was_direct
    print("done")
    """
    assert run(tmp_path, text) == "done\n"


def test_a_profiler_sees_what_operators_call(tmp_path):
    text = PREPARED + """
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        small.to(torch.float64)
    inner = [each.name for each in profiled.events()]
    assert "aten::copy_" in inner and "aten::_to_copy" in inner, inner
    print("done")
    """
    assert run(tmp_path, text) == "done\n"


def test_what_matmul_copies_for_its_backward_pass_can_leave(tmp_path):
    """Heads that were transposed: the copies are no outputs of `matmul`, which calls `bmm`."""
    text = """
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(64)
            self.qkv = torch.nn.Linear(64, 192)
            self.out = torch.nn.Linear(64, 64)

        def forward(self, x):
            heads = self.qkv(self.norm(x)).view(8, 128, 3, 4, 16)
            query, key, value = heads.permute(2, 0, 3, 1, 4)
            weights = torch.matmul(query, key.transpose(-2, -1)).softmax(-1)
            mixed = torch.matmul(weights, value).transpose(1, 2).reshape(8, 128, 64)
            return x + self.out(mixed)

    def train(after_step):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[Attention() for _ in range(6)])
        optimizer = torch.optim.AdamW(model.parameters())
        losses = []
        for _ in range(30):
            loss = model(torch.randn(8, 128, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            after_step()
        return losses

    # It takes 28 MiB. With the copies on the device, 10 would be too few.
    trains_under("10MiB", "64KiB", train, least=10, first=2)
    print("done")
    """
    assert run(tmp_path, TRAINS_UNDER + text) == "done\n"


def test_what_transforms_of_torch_func_make_can_leave(tmp_path):
    """Gradients of each sample: what a call under `vmap` makes is of the calls that it stands for,
    each of which is an op that is watched, and may run again."""
    text = """
    from torch.func import functional_call, grad, vmap

    def train(after_step):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Dropout(0.1),
            torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.AvgPool2d(4),
            torch.nn.Flatten(), torch.nn.Linear(16 * 49, 64), torch.nn.ReLU(),
            torch.nn.Linear(64, 10),
        )
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)

        def loss(weights, image, target):
            made = functional_call(model, weights, (image[None],))
            return torch.nn.functional.cross_entropy(made, target[None])

        of_each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
        norms = []
        for _ in range(30):
            weights = {name: value.detach() for name, value in model.named_parameters()}
            images, targets = torch.randn(24, 1, 28, 28), torch.randint(0, 10, (24,))
            gradients = of_each(weights, images, targets)
            norm = torch.stack([each.flatten(1).norm(dim=1) for each in gradients.values()])
            share = (1 / (norm.norm(dim=0) + 1e-6)).clamp(max=1)
            for name, value in model.named_parameters():
                value.grad = torch.einsum("n...,n->...", gradients[name], share) / 24
            optimizer.step()
            norms.append(norm.mean().item())
            after_step()
        return norms

    # One op needs 5 MiB. Were all that a transformed call makes its workspace, it would be 10.
    trains_under("7MiB", "16KiB", train, least=5, first=1)
    print("done")
    """
    assert run(tmp_path, TRAINS_UNDER + text) == "done\n"


def test_what_a_compiler_traces_with_unknown_sizes_has_no_memory(tmp_path):
    train = """
        layer = torch.nn.Linear(1024, 1024)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-2)

        @torch.compile(dynamic=True, backend="aot_eager")
        def loss_of(x):
            return (x.sigmoid() * x).square().mean()

        for step in range(4):
            loss = loss_of(layer(values(step, (512 + 64 * step) * 1024).view(-1, 1024)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item().hex())
        """
    capped = run(tmp_path, 'smartswap.enable("16MiB", device="host")\n' + textwrap.dedent(train))
    assert capped == run(tmp_path, train)
