"""Forks one process per training run from one that has PyTorch loaded and has run nothing.

Reads requests from stdin, each a line of JSON with a list of runs, starts them all at once, prints
their process ids, waits, and prints their exit codes.
"""

import gc
import json
import os
import sys

import child
import torch

# The first optimizer would import it, in each run again.
import torch._dynamo  # noqa: F401


def serve():
    """Answers requests until stdin ends. In a forked child returns that child's run."""
    torch.set_num_threads(1)
    # No run has to look through what all have from here, nor to copy its pages for that.
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        runs = json.loads(line)
        pids = []
        for run in runs:
            pid = os.fork()
            if pid == 0:
                return run
            pids.append(pid)
        print(json.dumps(pids), flush=True)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), flush=True)
    return None


if __name__ == "__main__":
    mine = serve()
    if mine is not None:
        child.execute(mine)
