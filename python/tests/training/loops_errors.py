"""Workloads that ask for too much, or open and close the engine themselves."""

import torch
import torch.nn.functional as F
from models import Mlp
from workloads import final


def _ask_for_too_much(step):
    """Runs out of memory, and returns what the error says."""
    try:
        if step == 3:
            torch.empty(1 << 30)
        elif step == 7:
            # Operands and result of an operator have to be there at once.
            factor = torch.ones(1400, 1400, requires_grad=True)
            (factor @ torch.ones(1400, 1400)).sum().backward()
        else:
            # Too much for any operator, inside a backward pass.
            row = torch.ones(1, 1024, requires_grad=True)
            wide = row.expand(8192, 1024)
            wide.register_hook(lambda _: torch.ones(8192, 1024))
            wide.sum().backward()
    except torch.OutOfMemoryError as error:
        return str(error)
    return None


def too_much(fails=()):
    """Runs out of memory in the steps `fails`, and trains on."""
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(14):
        optimizer.zero_grad()
        x = torch.randn(512, 256)
        if step in fails:
            text = _ask_for_too_much(step)
            assert text is not None, f"step {step} had room"
            assert text.startswith("SmartSwap: "), text
            assert "out of device memory" in text, text
            assert "more than the cap of" in text, text
            assert "would have helped" in text, text
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        yield loss
    return final(model, optimizer)


def opened_late(memory=None):
    """The engine opens when tensors live already, and closes before the end."""
    model = Mlp()
    x = torch.randn(512, 256)
    if memory is not None:
        import smartswap

        smartswap.enable(memory=memory, host_memory="1GiB", device="host")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(16):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.roll(step, 0))
        loss.backward()
        optimizer.step()
        yield loss
        if step == 11 and memory is not None:
            # Not all of it fits at once, and what the engine gave out has to stay valid.
            optimizer.zero_grad()
            del loss
            smartswap.disable()
            assert not smartswap.is_enabled()
    return final(model, optimizer)
