"""Small models, with tensors of 64 KiB and more, the least that the engine moves."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 256


class Mlp(nn.Sequential):
    """Four wide layers."""

    def __init__(self, width=256, inner=512):
        super().__init__(
            nn.Linear(width, inner),
            nn.ReLU(),
            nn.Linear(inner, inner),
            nn.Tanh(),
            nn.Linear(inner, inner),
            nn.GELU(),
            nn.Linear(inner, width),
        )


class Block(nn.Module):
    """A transformer layer."""

    def __init__(self, width, dropout):
        super().__init__()
        self.heads = 4
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """A transformer whose output layer shares the weights of its embedding.

    `recompute` is None, or what `use_reentrant` of torch's checkpoint should be.
    """

    def __init__(self, layers=3, width=128, dropout=0.0, recompute=None):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.recompute = recompute

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            if self.recompute is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.recompute)
        return self.head(self.norm(x))


def tokens(batch=4, length=128):
    """Random inputs and targets."""
    return (
        torch.randint(0, VOCABULARY, (batch, length)),
        torch.randint(0, VOCABULARY, (batch, length)),
    )


def padded_tokens():
    """The same, as long as the longest of its batch happens to be."""
    return tokens(length=8 * int(torch.randint(10, 25, ())))


def token_loss(model, inputs, targets):
    """The mean cross entropy."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


class Residual(nn.Module):
    """Two convolutions with batch norm, beside a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """A residual network for images of 32 by 32."""

    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.layers = nn.Sequential(
            Residual(width, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 64, 2)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, images):
        x = self.layers(F.relu(self.norm(self.stem(images)), inplace=True))
        return self.head(x.mean((2, 3)))


class Experts(nn.Module):
    """A mixture of experts that sends each token to the two it likes best, without a capacity."""

    def __init__(self, width=128, experts=4):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )

    def forward(self, x):
        shares, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if token.numel() > 0:
                share = shares[token, place].unsqueeze(-1)
                result = result.index_add(0, token, expert(x[token]) * share)
        return result


class MixtureModel(nn.Module):
    """Two layers of experts over token embeddings."""

    def __init__(self, width=128):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Experts(width) for _ in range(2))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens).flatten(0, 1)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x).view(*tokens.shape, VOCABULARY)
