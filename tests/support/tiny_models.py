"""Transformers small enough to make in a moment, seeded, with tokenizers of their own: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors

WORDS = [
    "the", "a", "ship", "sails", "from", "its", "slipway", "to", "sea", "anna", "lives", "in", "bergen", "who", "where",
    "is", "it", "##s", "##ing", "good", "bad",
]  # fmt: skip
LENGTH = 24


def bert_tokenizer(folder: Path) -> int:
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=LENGTH,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip
    return len(vocabulary)


def bert(folder: Path, kind: Any, **config: Any) -> Path:
    torch.manual_seed(1)
    size = bert_tokenizer(folder)
    settings = transformers.BertConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=LENGTH, **config,
    )  # fmt: skip
    kind(settings).eval().save_pretrained(folder)
    return folder


def gpt(folder: Path) -> Path:
    torch.manual_seed(1)
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=None))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<end>", *alphabet])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    settings = transformers.GPT2Config(
        vocab_size=len(vocabulary), n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(settings).eval().save_pretrained(folder)
    return folder
