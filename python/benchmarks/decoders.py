"""The models of the benchmarks: Llama-like decoders, in bf16 where nothing else is said."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder and of its batch."""

    vocab: int
    hidden: int
    heads: int
    ffn: int
    layers: int
    batch: int
    sequence: int
    # Whether a step ends with a fused AdamW.
    optimizer: bool = False
    # Batches whose gradients make one step.
    accumulate: int = 1
    # Whether weights are fp32, and bf16 comes from autocast.
    autocast: bool = False
    # Whether each layer is checkpointed, whatever the method.
    checkpointed: bool = False
    # Of what each half of a layer adds.
    dropout: float = 0.0


SHAPES = {
    "llama4k": Shape(32000, 4096, 32, 11008, 8, 1, 8192),
    "gpt12k": Shape(32000, 12288, 96, 32768, 3, 2, 8192),
    "small": Shape(32000, 1024, 16, 4096, 8, 4, 1024),
    # 2.9 billion parameters.
    "b3": Shape(32000, 3072, 24, 8192, 24, 4, 2048),
    # The same as it is trained, with one micro-batch and with four.
    "b3-adamw": Shape(32000, 3072, 24, 8192, 24, 4, 2048, optimizer=True, autocast=True),
    "b3-adamw-4": Shape(
        32000, 3072, 24, 8192, 24, 4, 2048, optimizer=True, accumulate=4, autocast=True
    ),
    # 6.7 billion, and 13.0 and 31.3 billion with checkpoints: AdamW's state in bf16 as well.
    "b7-adamw-8": Shape(32000, 4096, 32, 11008, 32, 1, 4096, optimizer=True, accumulate=8),
    "b13-adamw": Shape(32000, 5120, 40, 13824, 40, 1, 8192, optimizer=True, checkpointed=True),
    "b28-adamw": Shape(32000, 8192, 64, 22016, 38, 1, 8192, optimizer=True, checkpointed=True),
    # With its optimizer's state, so that more than activations has to move.
    "llama4k-adamw": Shape(32000, 4096, 32, 11008, 8, 1, 4096, optimizer=True),
    # Small enough to try every mode on.
    "mid-adamw": Shape(32000, 2048, 16, 5504, 8, 2, 2048, optimizer=True),
    # For trying the script out without a GPU.
    "tiny": Shape(512, 128, 4, 512, 3, 2, 128),
    "tiny-adamw-2": Shape(
        512, 128, 4, 512, 3, 2, 128, optimizer=True, accumulate=2, autocast=True, checkpointed=True
    ),
}


class Layer(nn.Module):
    """RMSNorm, attention, RMSNorm, SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden, ffn = shape.hidden, shape.ffn
        self.heads = shape.heads
        self.norm1 = nn.RMSNorm(hidden)
        self.norm2 = nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)
        self.dropout = nn.Dropout(shape.dropout) if shape.dropout else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] to the same."""
        batch, sequence, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, sequence, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, sequence, hidden)))
        y = self.norm2(x)
        return x + self.dropout(self.down(F.silu(self.gate(y)) * self.up(y)))


class Decoder(nn.Module):
    """Token ids to the mean cross entropy of the next token."""

    def __init__(self, shape: Shape, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def parameter_count(self) -> int:
        """How many weights there are."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Both are [batch, sequence]."""
        x = self.embed(ids)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(
    shape: Shape, device: str, recompute: bool, dtype: torch.dtype | None = None
) -> Decoder:
    """The model on the device, the same weights in each process."""
    dtype = dtype or (torch.float32 if shape.autocast else torch.bfloat16)
    torch.manual_seed(0)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return Decoder(shape, recompute or shape.checkpointed)
    finally:
        torch.set_default_dtype(previous)
