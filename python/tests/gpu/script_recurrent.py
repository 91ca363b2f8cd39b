"""Trains a recurrent language model by truncated backpropagation; knows nothing of SmartSwap."""

import torch
import torch.nn.functional as F
from torch import nn

WORDS, WIDTH, LENGTH, BATCH = 4096, 1024, 96, 64


class Model(nn.Module):
    """An LSTM whose layers drop out, behind an embedding that does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.LSTM(WIDTH, WIDTH, 3, dropout=0.3)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words, state):
        """[length, batch] words and a state to [length, batch, WORDS] and the next state."""
        out, state = self.layers(F.dropout(self.embed(words), 0.3), state)
        return self.head(out), state


def main() -> None:
    """Trains; prints each loss, and what was reserved."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = None
    for step in range(28):
        words = torch.randint(WORDS, (LENGTH + 1, BATCH), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out, state = model(words[:-1], state)
            loss = F.cross_entropy(out.flatten(0, 1), words[1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state = tuple(part.detach() for part in state)
        print(step, float(loss.detach()).hex())
    print("reserved", torch.cuda.max_memory_reserved())


if __name__ == "__main__":
    main()
