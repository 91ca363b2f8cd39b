"""What public scripts train on here: images and words, all made up, the same each time."""

from __future__ import annotations

import importlib.util
import json
import pickle
import random
import shutil
from pathlib import Path

WORDS = 60_000
VOCABULARY = 2_000
# Who nanochat's special tokens begin and end.
SPEAKERS = ("user", "assistant", "python", "output")


def make(folder: Path, is_small: bool) -> None:
    """Makes all inputs, unless they are there."""
    if (folder / "made").exists():
        return
    n_images, side = (32, 72) if is_small else (1280, 256)
    _images(folder / "images" / "train", n_images, side)
    _images(folder / "images" / "val", max(n_images // 8, 8), side)
    _images(folder / "few", 16, 40)
    text = _words(folder / "words.txt", 1 if is_small else 20)
    n_tokens, vocabulary = (20_000, 256) if is_small else (2_000_000, None)
    _tokens(folder / "nanogpt" / "words", n_tokens, vocabulary)
    _tokenizer(folder / "tokenizer", text)
    _unet(folder / "unet")
    _dialogues(folder / "dialogues", text, 64 if is_small else 2000, 2 if is_small else 16)
    _llama(folder / "llama", folder / "tokenizer", is_small)
    if importlib.util.find_spec("rustbpe") is not None:
        _nanochat(folder / "nanochat", is_small)
    (folder / "made").touch()


def _images(folder: Path, count: int, side: int) -> None:
    import numpy
    from PIL import Image

    source = numpy.random.default_rng(5)
    for index in range(count):
        path = folder / f"class{index % 4}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = source.integers(0, 255, (8, 8, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).resize((side, side)).save(path, quality=80)


def _words(path: Path, times: int) -> str:
    source = random.Random(5)
    names = [_word(source, 7) for _ in range(3000)]
    lines = [" ".join(source.choices(names, k=30)) for _ in range(WORDS * times // 30)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return "\n".join(lines[:2000])


def _word(source: random.Random, letters_max: int) -> str:
    return "".join(source.choices("abcdefghij", k=source.randint(2, letters_max)))


def _tokens(folder: Path, count: int, vocabulary: int | None) -> None:
    """Tokens of nanoGPT's own vocabulary, or of a smaller one, so that logits are small too."""
    import numpy

    folder.mkdir(parents=True, exist_ok=True)
    if vocabulary is not None:
        (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": vocabulary}))
    for name, share in (("train", 1), ("val", 4)):
        tokens = numpy.random.default_rng(share).integers(0, vocabulary or 50_000, count // share)
        tokens.astype(numpy.uint16).tofile(folder / f"{name}.bin")


def _tokenizer(folder: Path, text: str) -> None:
    from tokenizers import ByteLevelBPETokenizer

    made = ByteLevelBPETokenizer()
    made.train_from_iterator(text.splitlines(), vocab_size=VOCABULARY, special_tokens=["<|end|>"])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _unet(folder: Path) -> None:
    config = {
        "_class_name": "UNet2DModel",
        "sample_size": 32,
        "in_channels": 3,
        "out_channels": 3,
        "layers_per_block": 1,
        "block_out_channels": [32, 64],
        "norm_num_groups": 8,
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def _dialogues(folder: Path, text: str, count: int, lines_max: int) -> None:
    """Prompts with their completions, of changing lengths."""
    source = random.Random(5)
    lines = text.splitlines()
    folder.mkdir(parents=True, exist_ok=True)
    for split, n_lines in (("train", count), ("test", max(count // 60, 8))):
        with (folder / f"{split}.jsonl").open("w") as file:
            for _ in range(n_lines):
                prompt = source.choice(lines)
                completion = " ".join(source.choices(lines, k=source.randint(1, lines_max)))
                file.write(json.dumps({"prompt": prompt, "completion": " " + completion}) + "\n")


def _llama(folder: Path, tokenizer: Path, is_small: bool) -> None:
    """A Llama of random weights: at the large size 1.0 billion of them, as TinyLlama has."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = (512, 1408, 4, 8, 2) if is_small else (2048, 5632, 22, 32, 4)
    names = ["hidden_size", "intermediate_size", "num_hidden_layers"]
    names += ["num_attention_heads", "num_key_value_heads"]
    torch.manual_seed(5)
    config = LlamaConfig(**dict(zip(names, shape, strict=True)), vocab_size=VOCABULARY)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    shutil.copytree(tokenizer, folder, dirs_exist_ok=True)


def _nanochat(folder: Path, is_small: bool) -> None:
    """Documents, a tokenizer trained on them, and how many bytes each of its tokens has."""
    import pyarrow
    import pyarrow.parquet
    import rustbpe
    import tiktoken
    import torch

    source = random.Random(5)
    n_documents, vocabulary = (400, 512) if is_small else (4000, 32_768)
    documents = [
        " ".join(_word(source, 9) for _ in range(400)) for _ in range(n_documents)
    ]
    (folder / "base_data_climbmix").mkdir(parents=True, exist_ok=True)
    for index in range(2):
        table = pyarrow.table({"text": documents[index::2]})
        file = folder / "base_data_climbmix" / f"shard_{index:05}.parquet"
        pyarrow.parquet.write_table(table, file, row_group_size=100)
    names = ["bos", *(f"{who}_{end}" for who in SPEAKERS for end in ("start", "end"))]
    made = rustbpe.Tokenizer()
    # The size includes nothing special.
    made.train_from_iterator(iter(documents), vocabulary - len(names), pattern=r" ?\p{L}+|\s+|.")
    ranks = {bytes(token): rank for token, rank in made.get_mergeable_ranks()}
    special = {f"<|{name}|>": len(ranks) + index for index, name in enumerate(names)}
    settings = {"pat_str": made.get_pattern(), "mergeable_ranks": ranks, "special_tokens": special}
    encoding = tiktoken.Encoding(name="made up", **settings)
    (folder / "tokenizer").mkdir(exist_ok=True)
    (folder / "tokenizer" / "tokenizer.pkl").write_bytes(pickle.dumps(encoding))
    sizes = [len(token) for token, _ in sorted(ranks.items(), key=lambda pair: pair[1])]
    sizes += [0] * len(special)
    torch.save(torch.tensor(sizes, dtype=torch.int32), folder / "tokenizer" / "token_bytes.pt")
