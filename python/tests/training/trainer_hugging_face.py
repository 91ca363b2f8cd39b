"""Trains a small Llama with the Trainer of Hugging Face.

`--memory SIZE` does it under a cap, by the callback, and with `--switch` by an option.
"""

import argparse
import hashlib
import tempfile

import torch


def rows(count, seed):
    """Random tokens; nothing is to be learned from them but whether the arithmetic is the same."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(0, 512, (64,), generator=generator) for _ in range(count)]
    return [{"input_ids": row, "labels": row} for row in tokens]


def read_arguments(folder, memory):
    """What a command line says, with the cap if one is given."""
    from transformers import HfArgumentParser, TrainingArguments

    kind = TrainingArguments
    words = {
        "output_dir": folder,
        "use_cpu": True,
        "report_to": "none",
        "max_steps": 12,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "logging_steps": 4,
        "eval_strategy": "steps",
        "eval_steps": 6,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    if memory:
        import smartswap

        kind = smartswap.hugging_face_arguments(min_block="64KiB", device="host")
        words["smartswap_memory"] = memory
    line = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    (arguments,) = HfArgumentParser(kind).parse_args_into_dataclasses(line)
    return arguments


def train(callbacks, arguments):
    """The trainer after 12 steps of two batches each, with two evaluations."""
    from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, set_seed

    set_seed(7)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_dropout=0.1,
    )
    trainer = Trainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=rows(256, 1),
        eval_dataset=rows(16, 2),
        callbacks=callbacks,
    )
    # It would print how long everything took.
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory")
    parser.add_argument("--switch", action="store_true")
    wish = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        arguments = read_arguments(folder, wish.memory if wish.switch else None)
        callbacks = []
        if wish.memory:
            import smartswap

            # With the switch it is enabled by now, and the callback only logs.
            assert smartswap.is_enabled() == wish.switch
            settings = {"min_block": "64KiB", "device": "host"}
            callbacks = [smartswap.hugging_face_callback(wish.memory, **settings)]
        trainer = train(callbacks, arguments)
    history = trainer.state.log_history
    print(*(f"{entry['loss']}" for entry in history if "loss" in entry))
    print(*(f"{entry['eval_loss']}" for entry in history if "eval_loss" in entry))
    weights = hashlib.sha256()
    for parameter in trainer.model.parameters():
        weights.update(parameter.detach().numpy().tobytes())
    print(weights.hexdigest())
    if wish.memory:
        now = smartswap.stats()
        assert now["steps"] == 12, now["steps"]
        assert now["swapped_out_bytes"] + now["recomputed_ops"] > 0, "nothing had to leave"
        logged = [entry for entry in history if "loss" in entry]
        assert logged
        assert all(entry["smartswap/device_peak_bytes"] > 0 for entry in logged)


if __name__ == "__main__":
    main()
