"""Trains a small Llama with the Trainer of Hugging Face; `--memory SIZE` does it under a cap."""

import argparse
import hashlib
import tempfile

import torch


def rows(count, seed):
    """Random tokens; nothing is to be learned from them but whether the arithmetic is the same."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(0, 512, (64,), generator=generator) for _ in range(count)]
    return [{"input_ids": row, "labels": row} for row in tokens]


def train(callbacks, folder):
    """The trainer after 12 steps of two batches each, with two evaluations."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PrinterCallback,
        Trainer,
        TrainingArguments,
        set_seed,
    )

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
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        report_to=[],
        max_steps=12,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        logging_steps=4,
        eval_strategy="steps",
        eval_steps=6,
        save_strategy="no",
        disable_tqdm=True,
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
    wish = parser.parse_args()
    torch.set_num_threads(1)
    callbacks = []
    if wish.memory:
        import smartswap

        callbacks = [smartswap.hugging_face_callback(wish.memory, min_block="64KiB", device="host")]
    with tempfile.TemporaryDirectory() as folder:
        trainer = train(callbacks, folder)
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
