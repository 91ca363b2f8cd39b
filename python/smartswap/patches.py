"""What is changed in modules and classes of others, and put back."""

from __future__ import annotations

from typing import Any

__all__ = ["Patches"]

_MISSING = object()


class Patches:
    """Replaces attributes, and restores each as it was, the latest first."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._replaced)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute. One that `owner` only inherits is its own until it is restored."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        self._replaced.append((owner, name, before))

    def restore(self) -> None:
        """Puts back what was replaced."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
