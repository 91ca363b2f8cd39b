"""How far one result that is rounded otherwise moves a training: a judge's own measure.

    python benchmarks/rounding.py --width 192 --batch 16            # a small one, on the CPU
    python benchmarks/rounding.py --device cuda                     # as large as ViT-B/16

Plain PyTorch trains a ViT from scratch under bf16 autocast with SGD, as timm's script does, and
again with one thing rounded otherwise in the fifth step, as another algorithm would. It prints how
much the average loss of the epoch differs then, which tells a log of wrong bytes from one of other
roundings.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

STEPS = 13
DISTURBED_STEP = 4
CLASSES = 4
PATCH = 16


class Block(nn.Module):
    """Attention and an MLP, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        images, tokens, width = x.shape
        parts = self.qkv(self.norms[0](x)).reshape(images, tokens, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).reshape(images, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    """A vision transformer."""

    def __init__(self, width: int, layers: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (side // PATCH) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, CLASSES)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of images."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def train(args: argparse.Namespace, disturb: Callable[[Transformer], None]) -> list[float]:
    """The losses of one epoch."""
    torch.manual_seed(7)
    model = Transformer(args.width, args.layers, args.side).to(args.device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=2e-5
    )
    losses = []
    for step in range(STEPS):
        small = torch.rand(args.batch, 3, 8, 8)
        images = functional.interpolate(small, args.side, mode="bilinear").sub(0.5).div(0.25)
        classes = torch.randint(0, CLASSES, (args.batch,))
        with torch.autocast(args.device, dtype=torch.bfloat16):
            logits = model(images.to(args.device))
            loss = functional.cross_entropy(logits, classes.to(args.device))
        optimizer.zero_grad()
        loss.backward()
        if step == DISTURBED_STEP:
            disturb(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


def round_otherwise(weight: nn.Parameter, part: float) -> None:
    """Moves a part of a gradient's elements to the next number of bf16, away from zero."""
    drawn = torch.rand(weight.shape, generator=torch.Generator().manual_seed(3)) < part
    gradient = weight.grad
    bits = gradient.bfloat16().view(torch.int16).add(1)
    gradient.copy_(torch.where(drawn.to(gradient.device), bits.view(torch.bfloat16), gradient))


def main() -> None:
    """Prints one line for each thing that is rounded otherwise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--lr", type=float, default=1e-5, help="timm's in its first epoch")
    args = parser.parse_args()
    torch.use_deterministic_algorithms(True)

    plain = train(args, lambda _: None)
    print(f"losses: {plain[0]:.5f} to {plain[-1]:.5f}", flush=True)
    cases: dict[str, Callable[[Transformer], None]] = {
        "nothing": lambda _: None,
        "the convolution's gradient": lambda it: round_otherwise(it.patches.weight, 1.0),
        "a twentieth of it": lambda it: round_otherwise(it.patches.weight, 0.05),
        "the gradient of a layer's weights": lambda it: round_otherwise(
            it.blocks[args.layers // 2].qkv.weight, 1.0
        ),
    }
    for name, disturb in cases.items():
        other = train(args, disturb)
        average = (sum(other) - sum(plain)) / STEPS
        most = max(abs(a - b) for a, b in zip(other, plain, strict=True))
        print(f"{name}: average {average:+.2e}, at most {most:.1e} a step", flush=True)


if __name__ == "__main__":
    main()
