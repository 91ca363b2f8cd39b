"""Makes any training script deterministic from outside, digests its weights, and times its steps.

Python imports this by itself where its folder is on PYTHONPATH. It knows nothing of SmartSwap.
PUBLIC_DIGEST names the file that gets the digest and the number of steps, and on a line of its own
the median time of the later half of the steps in milliseconds; of the process that runs the script
alone. Beside it, with `.norms` behind its name, it leaves the norm of each gradient in each step.
With PUBLIC_WARNS_ONLY=1 operators that cannot be deterministic are not errors.
"""

import atexit
import hashlib
import os
import random
import statistics
import sys
import time

_OUT = os.environ.pop("PUBLIC_DIGEST", None)
_WARNS_ONLY = os.environ.get("PUBLIC_WARNS_ONLY") == "1"


def _prepare(out):
    # Whoever forks or spawns workers from here means them to be plain.
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    owner = os.getpid()
    optimizers = {}
    ends_s = {}
    norms = []

    @torch.no_grad()
    def note_norms(optimizer):
        found = [each.grad for group in optimizer.param_groups for each in group["params"]]
        found = [each for each in found if each is not None and not each.is_sparse]
        # A few at a time: under a small cap they are not all on the device.
        few = [found[at : at + 16] for at in range(0, len(found), 16)]
        own = [torch.stack(torch._foreach_norm(each)).float() for each in few]
        norms.append(torch.cat(own) if own else torch.empty(0))

    def note(optimizer, *_):
        if os.getpid() != owner:
            return
        optimizers[id(optimizer)] = optimizer
        ends_s.setdefault(id(optimizer), []).append(time.perf_counter())
        note_norms(optimizer)

    def step_ms():
        most = max(ends_s.values(), key=len)
        later = most[len(most) // 2 :]
        return statistics.median([1000 * (b - a) for a, b in zip(later, later[1:])] or [0])

    def digest():
        if os.getpid() != owner or not optimizers:
            return
        bits = hashlib.sha256()
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    copy = parameter.detach().clone(memory_format=torch.contiguous_format).cpu()
                    bits.update(copy.reshape(-1).view(torch.uint8).numpy().tobytes())
        with open(out, "w") as file:
            file.write(f"{bits.hexdigest()} {sum(map(len, ends_s.values()))}\n{step_ms():.1f}\n")
        torch.save([each.cpu() for each in norms], out + ".norms")

    register_optimizer_step_post_hook(note)
    atexit.register(digest)
    random.seed(7)
    torch.manual_seed(7)
    # Attention warns only of what it would else do right.
    torch.use_deterministic_algorithms(True, warn_only=_WARNS_ONLY)
    cudnn = type(torch.backends.cudnn)
    for name, value in (("benchmark", False), ("deterministic", True)):
        setattr(torch.backends.cudnn, name, value)
        # Scripts set them as well.
        setattr(cudnn, name, property(lambda _, value=value: value, lambda _, __: None))


if _OUT is not None and os.path.basename(sys.executable).startswith("python"):
    _prepare(_OUT)
