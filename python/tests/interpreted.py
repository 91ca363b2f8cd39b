"""Triton's interpreter as a device: kernels that Inductor writes for Triton run on the CPU.

    with_interpreter()

before anything is compiled. It takes the place of a GPU's driver, and of what the interpreter
lacks.
"""

import builtins
import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import numpy  # noqa: E402
import torch  # noqa: E402


def with_interpreter() -> None:
    """Lets torch.compile make Triton kernels for tensors of the CPU, and interpret them."""
    import torch._inductor.config as settings
    import triton.language
    from torch._inductor.runtime import triton_helpers
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver, interpreter

    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda *_: 0,
            get_device_interface=lambda: torch.cpu,
        )
    )
    settings.cpu_backend = "triton"
    settings.compile_threads = 1

    class Functions:
        """The device's library of functions: the interpreter has Triton's own while it runs."""

        def __getattr__(self, name: str):
            return lambda *args: getattr(triton.language.math, name)(*args)

    triton_helpers.libdevice = Functions()

    class Number(int):
        """NumPy makes numbers of arrays without dimensions alone."""

        def __new__(cls, value, *base):
            is_array = isinstance(value, numpy.ndarray)
            return builtins.int(value.item() if is_array else value, *base)

    interpreter.int = Number
    # It works on the tensors themselves, as a device does, and not on copies.
    executor = interpreter.GridExecutor
    executor._init_args_hst = lambda _, args, kwargs: (list(args), kwargs)
    executor._restore_args_dev = lambda *_: None
