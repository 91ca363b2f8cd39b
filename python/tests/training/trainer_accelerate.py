"""Trains a small model with accelerate's loop. Knows nothing of SmartSwap."""

import hashlib

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.set_num_threads(1)
    torch.manual_seed(7)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Sequential(
        *(part for _ in range(8) for part in (torch.nn.Linear(384, 384), torch.nn.GELU()))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(4096, 384, generator=torch.Generator().manual_seed(1)))
    loader = DataLoader(data, batch_size=256)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item().hex())
    weights = hashlib.sha256()
    for parameter in accelerator.unwrap_model(model).parameters():
        weights.update(parameter.detach().numpy().tobytes())
    if accelerator.is_main_process:
        print(*losses, weights.hexdigest())


if __name__ == "__main__":
    main()
