"""Trains the GPT on the stand-in and on the CPU, and prints both losses as JSON.

usage: script_losses.py float32|bfloat16
"""

import json
import sys

import torch
import torch_npu  # noqa: F401
from standin import DEVICE, Training

dtype = getattr(torch, sys.argv[1])
losses = {}
for device in (DEVICE, "cpu"):
    training = Training(device, dtype)
    losses[device.partition(":")[0]] = [training.step() for _ in range(3)]
print(json.dumps(losses))
