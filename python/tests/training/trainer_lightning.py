"""Trains a small network with Lightning's Trainer; `--memory SIZE` does it under a cap."""

import argparse
import hashlib
import logging
import tempfile
import warnings
from pathlib import Path

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn


class Network(lightning.LightningModule):
    """Layers wide enough for their activations to matter, with dropout."""

    def __init__(self):
        super().__init__()
        hidden = [nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)]
        self.layers = nn.Sequential(*hidden, nn.Linear(256, 1))
        self.losses = []

    def training_step(self, batch, index):
        """The loss of a batch."""
        loss = self.layers(batch[0]).square().mean()
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        """What it is without dropout."""
        self.losses.append(self.layers(batch[0]).square().mean().item())

    def configure_optimizers(self):
        """AdamW on all layers."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(callbacks, folder):
    """The network after two epochs of eight steps, each with a validation."""
    lightning.seed_everything(5, verbose=False)
    generator = torch.Generator().manual_seed(1)
    rows = torch.utils.data.TensorDataset(torch.randn(4096, 256, generator=generator))
    loader = torch.utils.data.DataLoader(rows, batch_size=512)
    network = Network()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=callbacks,
        logger=CSVLogger(folder),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(network, loader, loader)
    return network, [path.read_text() for path in Path(folder).rglob("metrics.csv")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory")
    wish = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    callbacks = []
    if wish.memory:
        import smartswap

        callbacks = [smartswap.lightning_callback(wish.memory, min_block="64KiB", device="host")]
    with tempfile.TemporaryDirectory() as folder:
        network, metrics = train(callbacks, folder)
    for loss in network.losses:
        print(loss.hex())
    weights = hashlib.sha256()
    for parameter in network.parameters():
        weights.update(parameter.detach().numpy().tobytes())
    print(weights.hexdigest())
    if wish.memory:
        now = smartswap.stats()
        assert now["steps"] == 16, now["steps"]
        assert now["swapped_out_bytes"] + now["recomputed_ops"] > 0, "nothing had to leave"
        assert "smartswap/device_peak_bytes" in metrics[0]


if __name__ == "__main__":
    main()
