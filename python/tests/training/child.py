"""One training run, capped by SmartSwap or with plain PyTorch, and what it came to: its word says
which, as JSON."""

import hashlib
import json
import os
import sys
import traceback

import torch
import workloads

PATIENT = os.path.join(os.path.dirname(__file__), "patient.toml")


def digest(tensor):
    """A hash of the tensor's bytes, its dtype and its shape."""
    with torch.no_grad():
        plain = tensor.detach()
        plain = getattr(plain, "_local_tensor", plain)
        # A copy, since memory that was given to NumPy stays where it is.
        copy = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
        content = copy.view(torch.uint8).numpy().tobytes()
    shape = f"{plain.dtype} {tuple(plain.shape)} "
    return shape + hashlib.sha256(content).hexdigest()


def drive(run, stats):
    """Runs a workload to its end: the loss of each step, statistics after each, final tensors."""
    steps = workloads.find(run["workload"])(**run.get("arguments", {}))
    losses, course = [], []
    while True:
        try:
            loss = next(steps)
        except StopIteration as end:
            tensors = {name: digest(tensor) for name, tensor in (end.value or {}).items()}
            return {"losses": losses, "tensors": tensors, "course": course}
        losses.append(loss.item().hex() if isinstance(loss, torch.Tensor) else str(loss))
        course.append(stats())


def train(run):
    """The result of a run, capped if it has a cap."""
    torch.set_num_threads(run.get("threads", 1))
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(bool(run.get("deterministic")))
    if run["cap_bytes"] is None:
        result = drive(run, lambda: None)
        assert not any(name.partition(".")[0] == "smartswap" for name in sys.modules)
        return result
    import smartswap

    if run.get("opens", True):
        smartswap.enable(
            memory=run["cap_bytes"],
            host_memory="1GiB",
            device="host",
            # Whether it tries deferred updates depends on how busy the machine is.
            **{"config": PATIENT, "defer_updates": "off"} | run.get("settings", {}),
        )
    result = drive(run, lambda: smartswap.stats() if smartswap.is_enabled() else None)
    result["families"] = smartswap.explain().get("families") if smartswap.is_enabled() else None
    result["course"] = [stats for stats in result["course"] if stats is not None]
    result["stats"] = smartswap.stats() if smartswap.is_enabled() else result["course"][-1]
    return result


def execute(run):
    """Runs and writes the result as JSON into the run's file. Leaves by an exception on failure."""
    try:
        result = train(run)
    except BaseException:
        traceback.print_exc()
        raise SystemExit(3) from None
    with open(run["result"], "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    execute(json.loads(sys.argv[1]))
