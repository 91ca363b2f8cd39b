"""Random programs of operators, with outputs dropped at random: the same bits as plain PyTorch.

    python random_replays.py plain 300           # a digest of each program, without SmartSwap
    python random_replays.py host 300            # under it, then what was made again
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F

_STEP_PROGRAMS = 25
_SIZE = 16


class Program:
    """Works on a few square matrices, which operators replace, change, view and free."""

    def __init__(self, seed: int, device: str, chance: Chance) -> None:
        self.random = random.Random(seed)
        self.device = device
        self.chance = chance
        torch.manual_seed(seed)
        self.own = torch.Generator(device).manual_seed(seed)
        shape = (_SIZE, _SIZE)
        self.pool = [torch.randn(shape, device=device) for _ in range(4)]
        self.small = torch.randn(_SIZE, device=device)
        self.weight = torch.randn(shape, device=device, requires_grad=True)

    def pick(self) -> torch.Tensor:
        return self.random.choice(self.pool)

    def run(self) -> bytes:
        moves = [*[self.replace] * 3, self.change, self.view, self.differentiate]
        for _ in range(self.random.randrange(10, 30)):
            with self.chance.around_op(self):
                low = self.random.random() < 0.2
                with torch.autocast(self.device, torch.bfloat16, enabled=low):
                    self.random.choice(moves)()
        digest = hashlib.sha256()
        grad = self.weight.grad if self.weight.grad is not None else self.weight
        for tensor in [*self.pool, self.small, self.weight, grad]:
            plain = tensor.detach().cpu().contiguous().view(torch.uint8)
            digest.update(plain.numpy().tobytes())
        state = torch.get_rng_state() if self.device == "cpu" else torch.cuda.get_rng_state()
        digest.update(bytes(state.tolist()))
        digest.update(bytes(self.own.get_state().tolist()))
        return digest.digest()

    def put(self, made: torch.Tensor) -> None:
        if made.requires_grad:
            made = made.detach()
        made = torch.nan_to_num(made.float(), 0.0, 9.0, -9.0).clamp(-9, 9)
        self.pool[self.random.randrange(len(self.pool))] = made

    def replace(self) -> None:
        x, y = self.pick(), self.pick()
        self.put(self.random.choice(_MAKERS)(self, x, y))

    def change(self) -> None:
        x, y = self.pick(), self.pick()
        changes: list[Callable[[], object]] = [
            lambda: x.add_(y.clone(), alpha=0.5),
            lambda: x.mul_(0.5).sub_(self.small),
            lambda: x[2:5].copy_(y[1:4].clone()),
            lambda: x.data.clamp_(-3, 3),
            lambda: self.small.mul_(0.9).add_(0.1),
            lambda: self.small.copy_(y[3]),
            lambda: F.dropout(x, 0.3, inplace=True),
            lambda: x.bernoulli_(0.4, generator=self.own),
            lambda: x.normal_(),
        ]
        self.random.choice(changes)()

    def view(self) -> None:
        x = self.pick()
        views = [x.t(), x.view(_SIZE, 4, 4).transpose(1, 2).reshape(_SIZE, _SIZE), x[:, :].detach()]
        self.pool[self.random.randrange(len(self.pool))] = self.random.choice(views)

    def differentiate(self) -> None:
        x = self.pick()
        h = F.linear(x, self.weight, self.small)
        h = F.dropout(F.gelu(F.layer_norm(h, (_SIZE,), self.small)), 0.2)
        h = torch.softmax(h @ self.weight, -1)
        h.float().square().sum().backward()
        with torch.no_grad():
            self.weight.sub_(self.weight.grad, alpha=0.01)


_MAKERS: list[Callable[[Program, torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda p, x, y: x @ y,
    lambda p, x, y: x + y * 0.5,
    lambda p, x, y: F.linear(x, y, p.small),
    lambda p, x, y: F.layer_norm(x, (_SIZE,), p.small, p.small),
    lambda p, x, y: F.dropout(x, 0.5),
    lambda p, x, y: torch.native_dropout(x, 0.5, True)[0],
    lambda p, x, y: torch.bernoulli(torch.sigmoid(x)),
    lambda p, x, y: torch.rand_like(x) + x,
    lambda p, x, y: torch.rand(x.shape, generator=p.own, device=p.device) * y,
    lambda p, x, y: torch.randn(x.shape, device=p.device),
    lambda p, x, y: torch.cat([x[:8], y[8:]]),
    lambda p, x, y: torch.where(x > y, x, p.small),
    lambda p, x, y: x.sort(-1).values + y.topk(_SIZE, -1).values,
    lambda p, x, y: x.max(0).values * y,
    lambda p, x, y: x.index_select(0, torch.argsort(y[0])),
    lambda p, x, y: x[torch.randperm(_SIZE, device=p.device)],
    lambda p, x, y: F.batch_norm(x, p.small, p.small.abs(), training=True),
    lambda p, x, y: F.scaled_dot_product_attention(x[None], y[None], x[None], dropout_p=0.1)[0],
    lambda p, x, y: F.embedding(torch.arange(_SIZE, device=p.device), x),
    lambda p, x, y: F.conv1d(x[None], y[:, :, None])[0],
    lambda p, x, y: torch._foreach_mul([x, y], [p.small, p.small])[0],
    lambda p, x, y: torch.view_as_real(torch.complex(x, y) * 1j).sum(-1),
    lambda p, x, y: x.cumsum(0).tanh(),
    lambda p, x, y: F.gelu(x.to(torch.bfloat16)).to(torch.float32),
    lambda p, x, y: torch.einsum("ij,kj->ik", x, y),
    lambda p, x, y: x.expand(2, _SIZE, _SIZE).sum(0) + y.t(),
]


class Chance:
    """Drops nothing."""

    def around_op(self, program: Program) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def between(self, number: int) -> None:
        pass


class Drops(Chance):
    """Drops what can be made again, by a chance of its own."""

    def __init__(self) -> None:
        from smartswap import _native

        self.adapter = _native.adapter()
        self.adapter.set_aside(2)
        self.random = random.Random(1)
        self.dropped = 0

    @contextlib.contextmanager
    def around_op(self, program: Program):
        at_once = self.random.random() < 0.5
        self.adapter.drop_at_once(at_once)
        try:
            yield
        finally:
            self.adapter.drop_at_once(False)
        for tensor in program.pool:
            if self.random.random() < 0.5:
                self.dropped += self.adapter.discard(tensor)

    def between(self, number: int) -> None:
        if number % _STEP_PROGRAMS == 0:
            import smartswap

            smartswap.step()


def main() -> None:
    where, count = sys.argv[1], int(sys.argv[2])
    chance = Chance()
    if where != "plain":
        import smartswap

        # Vectors are too small to move, matrices are not.
        smartswap.enable("1GiB", device=where, min_block="512", manual_steps=True)
        chance = Drops()
    device = "cuda" if sys.argv[-1] == "cuda" or where.startswith("cuda") else "cpu"
    for number in range(count):
        digest = Program(number, device, chance).run()
        print(digest.hex())
        chance.between(number + 1)
    if isinstance(chance, Drops):
        print(json.dumps({**chance.adapter.recipes(), "dropped": chance.dropped}), file=sys.stderr)


if __name__ == "__main__":
    main()
