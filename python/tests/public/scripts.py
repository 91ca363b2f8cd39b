"""Which public scripts are run, where they come from, and with which arguments at which size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Script:
    """A script of others. `{data}` and `{out}` in its arguments are folders, the former in its
    environment as well."""

    name: str
    # In the folder of sources: the repository's name, then the path in it.
    file: str
    # At a small size on the CPU, and at a size that people use on a GPU.
    small: Sequence[str]
    large: Sequence[str]
    # Run before, plainly, in the same folder.
    before: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    # Its name for `python -m`, if it needs all of its repository.
    module: str = ""
    # The least cap at the small size, in percent of what is held: one op needs so much.
    small_percent_min: int = 0


_NANOGPT = "nanoGPT/train.py"
_NANOGPT_BOTH = [
    *["--dataset=words", "--always_save_checkpoint=True", "--warmup_iters=2", "--log_interval=1"],
    *["--gradient_accumulation_steps=2", "--eval_iters=2", "--dropout=0.1"],
]
_NANOGPT_SMALL = [
    *[*_NANOGPT_BOTH, "--device=cpu", "--n_layer=4", "--n_head=4", "--n_embd=128"],
    *["--block_size=128", "--batch_size=8", "--dtype=float32"],
]
_NANOGPT_LARGE = [*_NANOGPT_BOTH, "--batch_size=12", "--block_size=1024", "--dtype=bfloat16"]
_NANOCHAT_BOTH = ["--window-pattern=L", "--core-metric-every=-1"]
_TIMM = "pytorch-image-models/train.py"
_TIMM_BOTH = ["--data-dir", "{data}/images", "--num-classes", "4", "--seed", "1"]
_TIMM_SMALL = [
    *[*_TIMM_BOTH, "--device", "cpu", "--workers", "2", "--batch-size", "8"],
    *["--img-size", "64", "--output", "{out}", "--log-interval", "1", "--epochs", "2"],
]
_TIMM_LARGE = [
    *[*_TIMM_BOTH, "--workers", "8", "--amp", "--amp-dtype", "bfloat16"],
    *["--output", "{out}", "--log-interval", "4", "--epochs", "5"],
]
_SFT = "trl/sft.py"
_SFT_BOTH = [
    *["--model_name_or_path", "{data}/llama", "--dataset_name", "{data}/dialogues"],
    *["--output_dir", "{out}", "--dtype", "bfloat16"],
    *["--learning_rate", "2e-4", "--report_to", "none", "--seed", "1", "--logging_steps", "1"],
]
_SFT_LORA = [
    *[*_SFT_BOTH, "--use_peft", "--lora_target_modules", "all-linear", "--lora_r", "64"],
]
# Few tokens: the loss takes a buffer of 32768 elements for each.
_SFT_SMALL = [
    *["--use_cpu", "--max_steps", "8", "--max_length", "64", "--per_device_train_batch_size", "1"],
    *["--gradient_accumulation_steps", "2"],
]
_SFT_4_BITS = [
    *[*_SFT_LORA, "--load_in_4bit", "--use_bnb_nested_quant", "--optim", "adamw_8bit"],
    *["--packing", "--packing_strategy", "wrapped"],
]
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

SCRIPTS = [
    Script(
        "nanoGPT eager",
        _NANOGPT,
        [*_NANOGPT_SMALL, "--compile=False", "--max_iters=8", "--eval_interval=4"],
        [*_NANOGPT_LARGE, "--compile=False", "--max_iters=60", "--eval_interval=20"],
    ),
    Script(
        "nanoGPT compiled",
        _NANOGPT,
        [*_NANOGPT_SMALL, "--compile=True", "--max_iters=8", "--eval_interval=8"],
        [*_NANOGPT_LARGE, "--compile=True", "--max_iters=60", "--eval_interval=20"],
        # A graph of the CPU is one op.
        small_percent_min=90,
    ),
    Script(
        "nanoGPT resumed",
        _NANOGPT,
        [
            *[*_NANOGPT_SMALL, "--compile=False", "--max_iters=8", "--eval_interval=4"],
            "--init_from=resume",
        ],
        [
            *[*_NANOGPT_LARGE, "--compile=False", "--max_iters=60", "--eval_interval=20"],
            "--init_from=resume",
        ],
        before=["--max_iters=4", "--eval_interval=2"],
    ),
    Script(
        "nanochat compiled, Muon",
        "nanochat/scripts/base_train.py",
        [
            *[*_NANOCHAT_BOTH, "--depth=4", "--head-dim=32", "--aspect-ratio=32"],
            *["--max-seq-len=256", "--device-batch-size=4", "--total-batch-size=2048"],
            *["--num-iterations=8", "--eval-every=4", "--eval-tokens=2048", "--sample-every=4"],
        ],
        [
            *[*_NANOCHAT_BOTH, "--depth=12", "--device-batch-size=32"],
            *["--total-batch-size=131072", "--num-iterations=40"],
            *["--eval-every=-1", "--sample-every=-1"],
        ],
        # It leaves its checkpoints there as well, each run over those of the one before.
        environment={"NANOCHAT_BASE_DIR": "{data}/nanochat"},
        module="scripts.base_train",
        # A graph of the CPU is one op.
        small_percent_min=90,
    ),
    Script(
        "timm ViT, EMA",
        _TIMM,
        [*_TIMM_SMALL, "--model", "vit_tiny_patch16_224", "--img-size", "224", "--model-ema"],
        [*_TIMM_LARGE, "--model", "vit_base_patch16_224", "--batch-size", "96", "--model-ema"],
    ),
    Script(
        "timm ConvNeXt, Muon",
        _TIMM,
        [*_TIMM_SMALL, "--model", "convnext_atto", "--opt", "muon"],
        [*_TIMM_LARGE, "--model", "convnext_small", "--batch-size", "64", "--opt", "muon"],
    ),
    Script(
        "imagenet resnet",
        "examples/imagenet/main.py",
        [
            *["{data}/images", "-a", "resnet18", "-b", "8", "-j", "2", "--epochs", "2"],
            *["--seed", "1", "--no-accel"],
        ],
        ["{data}/images", "-a", "resnet50", "-b", "128", "-j", "8", "--epochs", "3", "--seed", "1"],
    ),
    Script(
        "dcgan",
        "examples/dcgan/main.py",
        [
            *["--dataset", "fake", "--niter", "1", "--batchSize", "64", "--dry-run"],
            *["--manualSeed", "1", "--ngf", "16", "--ndf", "16", "--outf", "{out}"],
        ],
        [
            *["--dataset", "folder", "--dataroot", "{data}/images/train", "--niter", "8"],
            *["--batchSize", "256", "--accel", "--ngf", "256", "--ndf", "256", "--manualSeed", "1"],
            *["--outf", "{out}"],
        ],
    ),
    Script(
        "run_clm",
        "run_clm.py",
        [
            *["--model_type", "gpt2", "--tokenizer_name", "{data}/tokenizer"],
            "--config_overrides",
            "n_layer=4,n_embd=128,n_head=4,vocab_size=2000,n_positions=128",
            *["--train_file", "{data}/words.txt", "--do_train", "--max_steps", "8"],
            *["--block_size", "128", "--per_device_train_batch_size", "8", "--use_cpu"],
            *["--output_dir", "{out}", "--report_to", "none", "--seed", "1"],
        ],
        [
            *["--model_type", "gpt2", "--tokenizer_name", "{data}/tokenizer"],
            *["--config_overrides", "n_layer=24,n_embd=1024,n_head=16"],
            *["--train_file", "{data}/words.txt", "--do_train", "--max_steps", "24"],
            *["--block_size", "1024", "--per_device_train_batch_size", "4", "--bf16"],
            *["--output_dir", "{out}", "--report_to", "none", "--seed", "1"],
        ],
        environment=_OFFLINE,
    ),
    Script(
        "diffusers unconditional, EMA",
        "diffusers/train_unconditional.py",
        [
            *["--train_data_dir", "{data}/few", "--resolution", "32", "--train_batch_size", "4"],
            *["--num_epochs", "1", "--save_images_epochs", "9", "--save_model_epochs", "9"],
            *["--ddpm_num_inference_steps", "2"],
            *["--use_ema", "--output_dir", "{out}", "--dataloader_num_workers", "0"],
            *["--model_config_name_or_path", "{data}/unet"],
        ],
        [
            *["--train_data_dir", "{data}/images/val", "--resolution", "64"],
            *["--train_batch_size", "16", "--num_epochs", "1", "--save_images_epochs", "9"],
            *["--save_model_epochs", "9", "--use_ema", "--output_dir", "{out}"],
            *["--ddpm_num_inference_steps", "5"],
            *["--mixed_precision", "bf16", "--dataloader_num_workers", "4"],
        ],
        environment=_OFFLINE,
    ),
    Script(
        "trl sft, LoRA",
        _SFT,
        [
            *[*_SFT_LORA, *_SFT_SMALL, "--gradient_checkpointing", "False"],
            *["--bf16", "False", "--dtype", "float32"],
        ],
        [
            *[*_SFT_LORA, "--gradient_checkpointing", "False", "--max_steps", "24"],
            *["--max_length", "1024", "--per_device_train_batch_size", "4"],
        ],
        environment=_OFFLINE,
    ),
    Script(
        "trl sft, all weights, evaluated",
        _SFT,
        [
            *[*_SFT_BOTH, *_SFT_SMALL, "--gradient_checkpointing", "False"],
            *["--bf16", "False", "--dtype", "float32"],
            *["--eval_strategy", "steps", "--eval_steps", "4"],
        ],
        [
            *[*_SFT_BOTH, "--gradient_checkpointing", "False", "--max_steps", "80"],
            *["--max_length", "1024", "--per_device_train_batch_size", "4"],
            *["--eval_strategy", "steps", "--eval_steps", "20"],
        ],
        environment=_OFFLINE,
    ),
    Script(
        "trl sft, LoRA on 4 bits",
        _SFT,
        [*_SFT_4_BITS, *_SFT_SMALL],
        [
            *[*_SFT_4_BITS, "--max_steps", "16", "--max_length", "2048"],
            *["--per_device_train_batch_size", "16"],
        ],
        environment=_OFFLINE,
    ),
]
