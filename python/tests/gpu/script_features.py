"""A training script that knows nothing of SmartSwap and uses much of PyTorch on a GPU."""

import argparse
import hashlib

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    """Convolutions with batch norm, in-place activations and dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        """[batch, width, height, width] to the same."""
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.gelu(x + self.drop(self.norm2(self.conv2(y))))


class Images(torch.utils.data.Dataset):
    """Pictures of noise."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 64, 64, generator=generator), index % 10


def batches(loader, stream):
    """Batches on the device, each copied on a stream of its own while the last one is used."""
    ready = None
    for images, labels in loader:
        with torch.cuda.stream(stream):
            following = (
                images.pin_memory().cuda(non_blocking=True),
                labels.pin_memory().cuda(non_blocking=True),
            )
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(stream)
        for tensor in following:
            tensor.record_stream(torch.cuda.current_stream())
        ready = following
    yield ready


def main() -> None:
    """Trains, evaluates in between, saves and resumes; prints losses and a hash of the weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint", required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    width = 192
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), *(Residual(width) for _ in range(6)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    ).cuda()
    run = torch.compile(model) if args.compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler()
    loader = torch.utils.data.DataLoader(Images(), batch_size=128, num_workers=2)
    stream = torch.cuda.Stream()
    for step, (images, labels) in enumerate(batches(loader, stream)):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(run(images), labels)
        scaler.scale(loss).backward()
        if step % 2 == 1:  # Two batches a step.
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        print(step, float(loss.detach()).hex())
        if step == 9:
            model.eval()
            with torch.no_grad():
                print("evaluated", float(model(images).sum()).hex())
            model.train()
            torch.cuda.empty_cache()
            torch.cuda.memory_stats()
            torch.cuda.reset_peak_memory_stats()
        if step == 15:
            torch.save({"model": model.state_dict(), "it": optimizer.state_dict()}, args.checkpoint)
            saved = torch.load(args.checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["it"])
        if step == 27:
            break
    digest = hashlib.sha256()
    for parameter in model.state_dict().values():
        digest.update(parameter.cpu().numpy().tobytes())
    print("weights", digest.hexdigest())
    print("reserved", torch.cuda.max_memory_reserved())


if __name__ == "__main__":
    main()
