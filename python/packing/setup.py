"""Packs what `cargo xtask wheel` has laid out in `compiled`. Nothing is built here."""

import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py


class Compiled(Distribution):
    """Is of one Python and one platform, although no extension is built."""

    def has_ext_modules(self) -> bool:
        """Whether the wheel's name says so."""
        return True


class Pack(build_py):
    """Adds the engine, the command line, the adapters and their sources."""

    def run(self) -> None:
        """Lays out the package."""
        super().run()
        shutil.copytree("compiled", Path(self.build_lib, "smartswap"), dirs_exist_ok=True)


setup(distclass=Compiled, cmdclass={"build_py": Pack})
