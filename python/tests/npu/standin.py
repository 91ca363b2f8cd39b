"""What scripts over the stand-in share: the device, its ledger, a small GPT and its data."""

import ctypes
import math

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "npu:0"
VOCABULARY, TOKENS, WIDTH, HEADS, LAYERS, BATCH = 256, 128, 128, 4, 4, 16


class Ledger(ctypes.Structure):
    """`standin_ledger`: what the device holds, counted by itself."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "capacity_bytes chunk_bytes chunk_bytes_peak chunk_count mapped_bytes mapping_count "
            "reserved_bytes range_count pinned_bytes pinned_bytes_peak registered_bytes "
            "stream_count event_count copied_out_bytes copied_in_bytes"
        ).split()
    ]


def ledger() -> dict[str, int]:
    """The device's own count of its memory."""
    found = Ledger()
    code = ctypes.CDLL("libascendcl.so").standin_ledger(0, ctypes.byref(found))
    assert code == 0, code
    return {name: getattr(found, name) for name, _ in Ledger._fields_}


class Attributes(ctypes.Structure):
    """`aclrtPtrAttributes`."""

    _fields_ = [("device", ctypes.c_uint32), ("kind", ctypes.c_int), ("rest", ctypes.c_uint32 * 5)]


def lies_on_host(tensor: torch.Tensor) -> bool:
    """Whether the device says that a tensor's memory is the host's."""
    found = Attributes()
    ask = ctypes.CDLL("libascendcl.so").aclrtPointerGetAttributes
    code = ask(ctypes.c_void_p(tensor.data_ptr()), ctypes.byref(found))
    assert code == 0 and found.kind in (0, 1), (code, found.kind)
    return found.kind == 0


def moments_on_host(optimizer: torch.optim.Optimizer) -> list[bool]:
    """Of each moment of AdamW, whether it lies on the host."""
    states = optimizer.state.values()
    return [lies_on_host(state[name]) for state in states for name in ("exp_avg", "exp_avg_sq")]


class Block(nn.Module):
    """Attention and two linear layers, each behind a norm."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        self.register_buffer("later", later)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Attention of each token to those before it."""
        size = WIDTH // HEADS

        def heads(part: torch.Tensor) -> torch.Tensor:
            apart = part.view(BATCH, TOKENS, HEADS, size).transpose(1, 2)
            return apart.reshape(BATCH * HEADS, TOKENS, size)

        query, key, value = map(heads, self.into(x).split(WIDTH, dim=2))
        weights = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(size)
        weights = weights.masked_fill(self.later, float("-inf")).softmax(dim=-1)
        joined = torch.bmm(weights, value).view(BATCH, HEADS, TOKENS, size).transpose(1, 2)
        return self.out(joined.reshape(BATCH, TOKENS, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        x = x + self.dropout(self.attend(self.first(x)))
        # Ascend's own GELU is the form with tanh.
        inner = F.gelu(self.up(self.second(x)), approximate="tanh")
        return x + self.dropout(self.down(inner))


class Gpt(nn.Module):
    """A small GPT whose step is made of operators that Ascend has kernels for."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(*(Block(dropout) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("order", torch.arange(TOKENS))

    def forward(self, text: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        x = self.layers(self.words(text) + self.places(self.order))
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


class Training:
    """A model with its optimizer, made alike in every process."""

    def __init__(
        self, device: str, dtype: torch.dtype = torch.float32, dropout: float = 0.0
    ) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = Gpt(dropout).to(dtype).to(device)
        # `foreach` takes operators that torch_npu has in another library.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)
        self.generator = torch.Generator().manual_seed(1)

    def state(self) -> dict[str, object]:
        """All that a checkpoint needs."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.generator.get_state(),
            "dropout": torch.npu.get_rng_state(self.device),
        }

    def resume(self, state: dict[str, object]) -> None:
        """Goes on from a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["data"])
        torch.npu.set_rng_state(state["dropout"], self.device)

    def step(self) -> float:
        """One step, and its loss."""
        text = torch.randint(VOCABULARY, (BATCH, TOKENS + 1), generator=self.generator)
        source, targets = (part.contiguous() for part in (text[:, :-1], text[:, 1:]))
        loss = self.model(source.to(self.device), targets.to(self.device))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()
