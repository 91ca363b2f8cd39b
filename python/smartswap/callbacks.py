"""What trainers of Hugging Face and Lightning take, if those are installed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import engine

__all__ = ["hugging_face_arguments", "hugging_face_callback", "lightning_callback"]

_COUNTERS = ("swapped_out_bytes", "swapped_in_bytes", "recomputed_ops", "stall_us")


def _figures() -> dict[str, float]:
    """What is logged beside the loss."""
    now = engine.stats()
    figures = {f"smartswap/{name}": now[name] for name in _COUNTERS}
    figures["smartswap/device_peak_bytes"] = now["reserved_bytes"]["peak"]
    return figures


def hugging_face_arguments(base: Any = None, **settings: Any) -> Any:
    """A class like TrainingArguments, or `base`, that takes `smartswap_memory` as well: the cap.

    For scripts that read their command line by HfArgumentParser, so that `--smartswap_memory 24GiB`
    is an option of theirs. SmartSwap is enabled where the arguments are read, with these other
    settings, which `enable` takes; without the option nothing is.
    """
    if base is None:
        from transformers import TrainingArguments as base

    @dataclass
    class SmartSwapArguments(base):
        """Enables SmartSwap before there is a model."""

        smartswap_memory: str | None = field(
            default=None,
            metadata={"help": "Train within so much device memory, such as 24GiB or 60%."},
        )

        def __post_init__(self) -> None:
            if self.smartswap_memory is not None and not engine.is_enabled():
                engine.enable(self.smartswap_memory, **settings)
            super().__post_init__()

    return SmartSwapArguments


def hugging_face_callback(memory: str | int | None = None, **settings: Any) -> Any:
    """A TrainerCallback that logs what SmartSwap does, and enables it if it is not enabled.

    Takes what `enable` takes. Make it before the model is put on the device, so before the
    Trainer: `Trainer(..., callbacks=[smartswap.hugging_face_callback("24GiB")])`.
    """
    from transformers import TrainerCallback

    class SmartSwapCallback(TrainerCallback):
        """Adds figures of SmartSwap to each log."""

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any
        ) -> None:
            """Adds to the figures that are about to be written, and to those kept."""
            if logs is None or not engine.is_enabled():
                return
            figures = _figures()
            logs.update(figures)
            if state.log_history:
                state.log_history[-1].update(figures)

    if not engine.is_enabled():
        engine.enable(memory, **settings)
    return SmartSwapCallback()


def lightning_callback(memory: str | int | None = None, **settings: Any) -> Any:
    """A Lightning Callback that logs what SmartSwap does, and enables it if it is not enabled.

    Takes what `enable` takes. Make it before the Trainer. Validation is run beside the steps.
    """
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        from pytorch_lightning.callbacks import Callback

    class SmartSwapCallback(Callback):
        """Keeps validation out of the plan, and logs figures of SmartSwap."""

        def __init__(self) -> None:
            super().__init__()
            self._beside: Any = None

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            """Validation begins between two steps."""
            if engine.is_enabled() and self._beside is None:
                self._beside = engine.beside_step()
                self._beside.__enter__()

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            """Validation is over."""
            self._leave()

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            """Validation may be where it failed."""
            self._leave()

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            """Writes the figures to the logger of the trainer."""
            if engine.is_enabled() and trainer.logger is not None:
                trainer.logger.log_metrics(_figures(), step=trainer.global_step)

        def _leave(self) -> None:
            beside, self._beside = self._beside, None
            if beside is not None and engine.is_enabled():
                beside.__exit__(None, None, None)

    if not engine.is_enabled():
        engine.enable(memory, **settings)
    return SmartSwapCallback()
