"""Updates that wait: the bits of those that do not, whoever looks, and when."""

import re
import textwrap

import pytest
from processes import PATIENT, run

TRAINING = """
    from smartswap import _native
    torch.manual_seed(3)
    if CAP:
        smartswap.enable(
            CAP, device="host", min_block="16KiB", defer_updates=MODE, config="CONFIG"
        )
    waited = []
    def note():
        if CAP:
            waited.append(_native.adapter().n_put_off())
    def digest(tensors):
        return [tensor.double().sum().item().hex() for tensor in tensors]
    def new_model():
        torch.manual_seed(3)
        return torch.nn.Sequential(
            torch.nn.Embedding(64, 96), *(torch.nn.Linear(96, 96) for _ in range(5)),
            torch.nn.LayerNorm(96),
        )
    model = new_model()
    def backward():
        loss = model(torch.randint(64, (32, 8))).square().mean()
        loss.backward()
        return loss
    def state_of(optimizer):
        return [value for state in optimizer.state.values()
                for value in state.values() if isinstance(value, torch.Tensor)]
"""

OPTIMIZERS = [
    "AdamW(P, lr=1e-2, fused=True)",
    "AdamW(P, lr=1e-2, foreach=True, amsgrad=True)",
    "AdamW(P, lr=1e-2, foreach=False)",
    "Adam(P, lr=torch.tensor(1e-2), fused=True)",
    "SGD(P, lr=1e-2, momentum=0.9, nesterov=True, foreach=True)",
    "SGD(P, lr=1e-2, fused=True)",
    "SGD(P, lr=1e-2, momentum=0.9, foreach=False)",
    "Adafactor(P, lr=1e-2, foreach=True)",
    "ASGD(P, lr=1e-2, foreach=True)",
    "Rprop(P, lr=1e-2, foreach=True)",
    "RMSprop(P, lr=1e-2, momentum=0.9, centered=True, foreach=False)",
    "NAdam(P, lr=1e-2, foreach=True)",
    "RAdam(P, lr=1e-2, foreach=False)",
    "Adagrad(P, lr=1e-2, fused=True)",
    "Muon([p for p in P if p.ndim == 2], lr=1e-2)",
]
# Some place new tensors into their lists, or keep values of Python there.
NEVER_WAIT = {"Adafactor(P, lr=1e-2, foreach=True)"}


# Gradients as under FSDP: those of a layer in one block, and here of two layers at the end.
SHARED = """
    P = list(model.parameters())
    optimizer = torch.optim.AdamW(P, lr=1e-2, fused=True)
    blocks = [P[:1], *(P[at:at + 2] for at in range(1, 9, 2)), P[9:]]
    for _ in range(6):
        optimizer.zero_grad()
        backward()
        for block in blocks:
            sizes = [value.numel() for value in block]
            flat = torch.cat([value.grad.flatten() for value in block]).split(sizes)
            for value, gradient in zip(block, flat):
                value.grad = gradient.view_as(value)
        optimizer.step()
        if CAP:
            adapter = _native.adapter()
            waited.append(sum(adapter.put_off_number(value) > 0 for value in P))
    print(digest(P))
    print(waited)
"""


def train(tmp_path, body, *, cap=None, mode="on"):
    """What a training prints that ends with `body`: a line of digests, and how often it waited."""
    text = (TRAINING + body).replace("CAP", repr(cap)).replace("MODE", repr(mode))
    lines = run(tmp_path, text.replace("CONFIG", str(PATIENT))).splitlines()
    waited = [int(number) for number in re.findall(r"\d+", lines.pop())]
    return lines, waited


EVERY_OPTIMIZER = """
    for made in OPTIMIZERS:
        P = list(model.parameters())
        optimizer = eval("torch.optim." + made)
        before = len(waited)
        for step in range(6):
            optimizer.zero_grad()
            backward()
            if step == 3:
                for group in optimizer.param_groups:
                    if isinstance(group["lr"], torch.Tensor):
                        group["lr"].fill_(3e-3)
                    else:
                        group["lr"] = 3e-3
            optimizer.step()
            note()
        print(made, digest(P), digest(state_of(optimizer)), digest([p.grad for p in P]))
    print(waited)
"""


def test_every_optimizer_of_torch_gives_its_bits(tmp_path):
    body = EVERY_OPTIMIZER.replace("OPTIMIZERS", repr(OPTIMIZERS))
    plain, _ = train(tmp_path, body)
    capped, waited = train(tmp_path, body, cap="2MiB")
    assert capped == plain
    for place, made in enumerate(OPTIMIZERS):
        waits = waited[6 * place : 6 * place + 6]
        assert any(waits) != (made in NEVER_WAIT), (made, waits)


# What is done after a step, each by itself, where updates wait.
LOOKS = {
    "an average of the weights": """
        average = [p.detach().clone() for p in P] if step == 0 else average
        torch._foreach_lerp_(average, [p.detach() for p in P], 0.1)
        seen += digest(average)""",
    "the gradients, and zeros instead of None": """
        seen += digest([p.grad for p in P])
        optimizer.zero_grad(set_to_none=False)""",
    "a checkpoint": """
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        loaded = torch.load(file)
        seen += digest(loaded["model"].values())
        if step == 3:
            model.load_state_dict(loaded["model"])
            optimizer.load_state_dict(loaded["optimizer"])""",
    "an evaluation": """
        with torch.no_grad():
            seen += digest([model(torch.arange(64).view(8, 8))])""",
    "NumPy": "seen += [p.detach().numpy().sum().item().hex() for p in P]",
    "an address": """
        for p in P:
            at = p.data_ptr()
            seen += [ctypes.string_at(at, p.nbytes)[:64].hex()]""",
    "the counts of steps": "seen += [s['step'].item() for s in optimizer.state.values()]",
    "a list": "seen += [P[1].detach().reshape(-1)[:5].tolist()]",
    "other data": """
        for p in P:
            p.data = p.data.clone().mul_(0.5)""",
    "the state": """
        for state in optimizer.state.values():
            state["exp_avg"] = state["exp_avg"].clone().mul_(0.5)""",
    "a second step": "optimizer.step()",
    "a forked child": """
        torch.set_num_threads(1)
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, pickle.dumps(digest(P)))
            os._exit(0)
        os.close(write)
        seen += pickle.loads(os.fdopen(read, "rb").read())
        os.wait()""",
    "copies": "seen += digest(copy.deepcopy(model).parameters())",
    "nobody": "",
}

EVERY_LOOK = """
    for fused in (True, False):
        for name, code in LOOKS.items():
            model = new_model()
            P = list(model.parameters())
            optimizer = torch.optim.AdamW(P, lr=1e-2, fused=fused)
            seen = []
            for step in range(5):
                optimizer.zero_grad()
                for _ in range(2):
                    backward()
                torch.nn.utils.clip_grad_norm_(P, 1.0)
                optimizer.step()
                note()
                exec(code)
            print(fused, name, seen, digest(P), digest(state_of(optimizer)))
            loaded = average = state = p = None
    if CAP:
        smartswap.disable()
    print(digest(P))
    print(waited)
"""


# Under the smaller one a block is cut, as it is more than a slice may have.
@pytest.mark.parametrize("cap", ["4MiB", "2MiB"])
def test_updates_of_gradients_in_one_block_wait_together(tmp_path, cap):
    plain, _ = train(tmp_path, SHARED)
    capped, waited = train(tmp_path, SHARED, cap=cap)
    assert capped == plain
    # The first step makes the state.
    assert waited[0] == 0 and waited[1:] == [13] * 5, waited


def test_whoever_looks_finds_the_update_done(tmp_path):
    codes = {name: textwrap.dedent(code) for name, code in LOOKS.items()}
    body = EVERY_LOOK.replace("LOOKS", repr(codes))
    plain, _ = train(tmp_path, body)
    capped, waited = train(tmp_path, body, cap="2MiB")
    assert capped == plain
    assert len(plain) == 2 * len(LOOKS) + 1
    for start in range(0, len(waited), 5):
        # The first call of each function shows whether it may wait.
        assert min(waited[start + 1 : start + 5]) > 1, (start, waited)


def test_an_update_that_fails_says_so_and_loses_nothing_else(tmp_path):
    body = """
    from torch.optim import adamw
    P = list(model.parameters())
    optimizer = torch.optim.AdamW(P, lr=1e-2, fused=True)
    for step in range(3):
        optimizer.zero_grad()
        backward()
        optimizer.step()
        note()
    def broken(*_args, **_kwargs):
        raise RuntimeError("no such thing")
    real, torch._fused_adamw_ = torch._fused_adamw_, broken
    try:
        backward()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
    torch._fused_adamw_ = real
    optimizer.zero_grad()
    print(backward().isfinite().item())
    print(waited)
    """
    lines, waited = train(tmp_path, body, cap="2MiB")
    assert "an optimizer's update that had waited failed: RuntimeError: no such thing" in lines[0]
    assert lines[1:] == ["True"]
    assert waited[-1] > 1


def test_off_never_waits_and_a_wrong_choice_is_told(tmp_path):
    body = EVERY_LOOK.replace("LOOKS", "{'nobody': ''}")
    _, waited = train(tmp_path, body, cap="2MiB", mode="off")
    assert waited == [0] * 10
    with pytest.raises(AssertionError, match="defer_updates is one of auto, on, off, not 'of'"):
        train(tmp_path, body, cap="2MiB", mode="of")
