"""Workloads: what happens around a step, from optimizers to interrupts."""

import io
import queue
import signal
import threading

import torch
import torch.nn.functional as F
from models import Gpt, Mlp, token_loss, tokens
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset
from workloads import STEPS, final

ROWS = 512
# Each has 256 values, 8 MiB in all: less than the cap, however many steps there are.
KEPT_ROWS = 16 * ROWS


def optimized(name, norm=None, steps=STEPS, **settings):
    """An optimizer of torch.optim, with its gradients clipped if `norm` is given."""
    model = Mlp()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, **settings)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(ROWS, 256)
        loss = F.mse_loss(model(x), x)
        loss.backward()
        if norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        schedule.step()
        yield loss
    return final(model, optimizer)


def two_optimizers():
    """An adversarial pair: each iteration steps both."""
    maker, judge = Mlp(), nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 1))
    makes = torch.optim.Adam(maker.parameters(), lr=1e-3)
    judges = torch.optim.SGD(judge.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(STEPS):
        made = maker(torch.randn(ROWS, 256))
        judges.zero_grad()
        told = F.softplus(judge(made.detach())) + F.softplus(-judge(torch.randn(ROWS, 256)))
        told.mean().backward()
        judges.step()
        makes.zero_grad()
        loss = F.softplus(-judge(made)).mean()
        loss.backward()
        makes.step()
        yield loss
    return {**final(maker, makes, judges), **{f"judge {k}": v for k, v in final(judge).items()}}


def lbfgs(steps=8):
    """An optimizer that calls the loss several times in each step."""
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=3)
    x = torch.randn(ROWS, 256)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.roll(1, 1))
        loss.backward()
        return loss

    for _ in range(steps):
        yield optimizer.step(closure)
    state = optimizer.state[optimizer._params[0]]
    history = {f"direction {i}": d for i, d in enumerate(state["old_dirs"])}
    return {**final(model, optimizer), **history}


def evaluated(every=3, steps=24):
    """Passes without gradients between steps, of another batch size, in evaluation mode."""
    model = Gpt(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        loss = token_loss(model, *tokens())
        loss.backward()
        optimizer.step()
        if step % every == 0:
            model.eval()
            with torch.no_grad():
                for batch in (1, 6):
                    loss = loss + token_loss(model, *tokens(batch))
            model.train()
        yield loss.detach()
    return final(model, optimizer)


def batch_changes():
    """The batch grows for some steps, then shrinks back to where it was."""
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in [4] * 9 + [6] * 9 + [4] * 6 + [2, 3, 5]:
        optimizer.zero_grad()
        loss = token_loss(model, *tokens(batch))
        loss.backward()
        optimizer.step()
        yield loss
    return final(model, optimizer)


def grows():
    """Fits for some steps, then does not."""
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in [1] * 14 + [6] * 12:
        optimizer.zero_grad()
        loss = token_loss(model, *tokens(batch))
        loss.backward()
        optimizer.step()
        yield loss
    return final(model, optimizer)


def fetched_ahead():
    """Another thread makes the batches, with operators of its own, while this one trains."""
    ready = queue.Queue(maxsize=2)

    def fetch():
        random = torch.Generator().manual_seed(5)
        for _ in range(STEPS):
            x = torch.randn(ROWS, 256, generator=random)
            ready.put((x, (x.roll(1, 0) * 0.5).sin()))

    fetcher = threading.Thread(target=fetch)
    fetcher.start()
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, target = ready.get()
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        yield loss
    fetcher.join()
    return final(model, optimizer)


class _Thrower(nn.Module):
    """Raises from inside a forward, or from inside a backward, when it is told to."""

    def __init__(self):
        super().__init__()
        self.where = None
        self.what = RuntimeError

    def _throw(self, where):
        if self.where == where:
            self.where = None
            if self.what is KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)
            raise self.what(f"thrown in the {where}")

    def forward(self, x):
        self._throw("forward")
        if x.requires_grad:
            x.register_hook(lambda gradient: self._throw("backward"))
        return x


def thrown(what="RuntimeError"):
    """Steps that end by an exception in the middle; training goes on behind them."""
    thrower = _Thrower()
    thrower.what = {"RuntimeError": RuntimeError, "KeyboardInterrupt": KeyboardInterrupt}[what]
    model = nn.Sequential(Mlp(), thrower, Mlp())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    caught = 0
    for step in range(24):
        thrower.where = {4: "forward", 6: "backward", 15: "forward", 16: "backward"}.get(step)
        x = torch.randn(ROWS, 256)
        loss = None
        try:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x)
            if step == 12:
                # An operator that fails by itself.
                torch.mm(x, x)
            loss.backward()
            optimizer.step()
        except (RuntimeError, KeyboardInterrupt):
            caught += 1
            continue
        yield loss
    assert caught == 5, caught
    return final(model, optimizer)


def saved():
    """The model and its optimizer are saved in the middle, and a fresh pair goes on from there."""
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        if step == 8:
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            del model, optimizer
            file.seek(0)
            content = torch.load(file)
            model = Gpt()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            model.load_state_dict(content["model"])
            optimizer.load_state_dict(content["optimizer"])
            del content
        optimizer.zero_grad()
        loss = token_loss(model, *tokens())
        loss.backward()
        optimizer.step()
        yield loss
    return final(model, optimizer)


class Made(Dataset):
    """Rows that are made where they are asked for."""

    def __len__(self):
        return STEPS * ROWS

    def __getitem__(self, place):
        return torch.randn(256, generator=torch.Generator().manual_seed(place))


def loaded(start, kept=False):
    """Batches from two worker processes; `kept` ones were made before the workers began."""
    data = TensorDataset(torch.randn(KEPT_ROWS, 256)) if kept else Made()
    loader = DataLoader(
        data,
        batch_size=ROWS,
        sampler=RandomSampler(data, num_samples=STEPS * ROWS),
        num_workers=2,
        multiprocessing_context=start,
    )
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in loader:
        x = batch[0] if kept else batch
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        yield loss
    return final(model, optimizer)
