"""Forks a process per script from one that has PyTorch loaded and has run nothing.

Its words name a folder and a module of it that is loaded too. Reads requests from stdin, each a
line of JSON with a list of scripts, starts them all at once, prints their process ids, waits, and
prints their exit codes.
"""

import builtins
import gc
import importlib
import json
import os
import sys
import types

import torch

# The first optimizer would import it, in each script again.
import torch._dynamo  # noqa: F401


def serve():
    """Answers requests until stdin ends. In a forked child returns that child's script."""
    torch.set_num_threads(1)
    # No script has to look through what all have from here, nor to copy its pages for that.
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        scripts = json.loads(line)
        pids = []
        for script in scripts:
            pid = os.fork()
            if pid == 0:
                return script
            pids.append(pid)
        print(json.dumps(pids), flush=True)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), flush=True)
    return None


def become(script):
    """Sets up what Python would start the script with: words, folders, variables, streams."""
    if script.get("cwd"):
        os.chdir(script["cwd"])
    os.environ.clear()
    os.environ.update(script["environment"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, name in enumerate((script["stdout"], script["stderr"]), start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    sys.argv = list(script["words"])
    sys.path[0] = os.path.dirname(script["words"][0])
    main = types.ModuleType("__main__")
    main.__file__ = script["words"][0]
    main.__builtins__ = builtins
    return main


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.path.insert(0, sys.argv[1])
        importlib.import_module(sys.argv[2])
    mine = serve()
    if mine is not None:
        # It stays the main module to the end, as when Python starts it.
        own, sys.modules["__main__"] = sys.modules["__main__"], become(mine)
        with open(mine["words"][0]) as source:
            code = compile(source.read(), mine["words"][0], "exec")
        exec(code, vars(sys.modules["__main__"]))
