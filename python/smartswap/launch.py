"""Runs a script or module as __main__, as `python script.py` or `python -m module` would."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

from .errors import SettingsError

__all__ = ["load_module", "load_script", "run"]

Program = tuple[types.CodeType, types.ModuleType]


def load_script(path: str, args: Sequence[str]) -> Callable[[], Program]:
    """Prepares to run a file, or the __main__.py of a folder, with `args` behind it."""
    is_folder = os.path.isdir(path)
    folder = os.path.abspath(path) if is_folder else os.path.dirname(os.path.realpath(path))
    file = os.path.join(path, "__main__.py") if is_folder else path
    if not os.path.isfile(file):
        raise SettingsError(f"there is no script '{file}'")
    # Python joins them just so, and shows the result in __file__ and in tracebacks.
    file = os.path.join(os.getcwd(), file.removeprefix("./"))

    def load() -> Program:
        sys.argv[:] = [path, *args]
        if not _is_safe_path():
            sys.path[0] = folder
        loader = importlib.machinery.SourceFileLoader("__main__", file)
        if file.endswith(".pyc"):
            code = importlib.machinery.SourcelessFileLoader("__main__", file).get_code("__main__")
        else:
            code = loader.source_to_code(loader.get_data(file), file)
        return code, _main_module(file, loader, None, "")

    return load


def load_module(name: str, args: Sequence[str]) -> Callable[[], Program]:
    """Prepares to run a module, or the __main__ of a package, with `args` behind it."""

    def load() -> Program:
        sys.argv[:] = ["-m", *args]
        if not _is_safe_path():
            sys.path[0] = os.getcwd()
        spec = _find(name)
        assert spec.loader is not None
        code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]
        if code is None:
            raise SettingsError(f"module '{name}' has no Python code that could be run")
        sys.argv[0] = spec.origin or name
        return code, _main_module(spec.origin or name, spec.loader, spec, spec.parent or "")

    return load


def _is_safe_path() -> bool:
    """Whether Python was asked to put no folder in front of the path (`-P`)."""
    return getattr(sys.flags, "safe_path", False)


def _find(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise
        spec = None
    if spec is None or spec.loader is None:
        raise SettingsError(f"there is no module '{name}' that could be run")
    return spec


def _main_module(file: str, loader: Any, spec: ModuleSpec | None, parent: str) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__file__ = file
    main.__loader__ = loader
    main.__spec__ = spec
    main.__package__ = parent if spec is not None else None
    main.__dict__["__builtins__"] = builtins
    main.__dict__["__cached__"] = spec.cached if spec is not None else None
    return main


def run(load: Callable[[], Program]) -> None:
    """Runs it to its end. What it raises comes out, and its traceback is printed without us.

    Leaves with code 2 and one line if there is nothing to run.
    """
    _hide_own_frames()
    try:
        code, main = load()
    except SettingsError as error:
        print(f"smartswap: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _hide_own_frames() -> None:
    shown = sys.excepthook
    own = os.path.dirname(os.path.abspath(__file__))

    def show(kind: Any, error: BaseException, trace: types.TracebackType | None) -> None:
        part = _users_part(trace, own)
        if part is None and not isinstance(error, SyntaxError):
            part = trace
        shown(kind, error.with_traceback(part), part)

    sys.excepthook = show


def _users_part(trace: types.TracebackType | None, own: str) -> types.TracebackType | None:
    """The traceback behind our own frames and those that lead to them."""
    part = trace
    is_behind = False
    while part is not None:
        file = part.tb_frame.f_code.co_filename
        is_own = os.path.dirname(file) == own
        if is_behind and not is_own and not file.startswith("<frozen"):
            return part
        is_behind = is_behind or is_own
        part = part.tb_next
    # A program that could not be read has no frame.
    return None if is_behind else trace
