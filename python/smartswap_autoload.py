"""What PyTorch calls when it has been imported: an entry point of its group `torch.backends`.

Beside the package, as nothing else is imported where nobody asks for it.
"""

import os
import warnings


def load() -> None:
    """Has SmartSwap open where SMARTSWAP_MEMORY is set. Never raises: PyTorch would not import."""
    if not os.environ.get("SMARTSWAP_MEMORY"):
        return
    try:
        from smartswap import variables

        variables.open_when_used()
    except Exception as error:
        said = f"SMARTSWAP_MEMORY has no effect, the script runs without a cap: {error}"
        warnings.warn(said, stacklevel=2)
