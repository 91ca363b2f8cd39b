"""Uses a tensor on another stream than the one that wrote it, and prints what the engine says.

usage: script_order.py DEVICE CONFIG.toml forgets|waits|records|synchronizes
"""

import importlib
import json
import sys

import torch

import smartswap

device, config, how = sys.argv[1:]
if device.startswith("npu"):
    importlib.import_module("torch_npu")
smartswap.enable("256MiB", device=device, config=config)
streams = torch.get_device_module(torch.device(device))
side = streams.Stream()
made = torch.ones(4 << 20, device=device)
# The first use there is ordered by the engine's own wait for the memory, whatever the script does.
side.wait_stream(streams.current_stream())
with streams.stream(side):
    twice = made + made
streams.current_stream().wait_stream(side)
# In place: nothing proves that it can be made again, which would wait for it.
made.add_(1)
if how == "waits":
    side.wait_stream(streams.current_stream())
elif how == "records":
    event = streams.Event()
    event.record()
    event.synchronize()
elif how == "synchronizes":
    streams.synchronize()
error = ""
try:
    with streams.stream(side):
        twice.add_(made)
        # An operator that has run cannot fail any more: the next one does.
        twice.add_(1)
except RuntimeError as failed:
    error = str(failed)
print(json.dumps({"error": error, "order": smartswap.explain()["order"]}))
