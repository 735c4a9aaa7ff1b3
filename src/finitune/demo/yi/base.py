"""A small Llama-like base model with never-trained chat tokens, pretrained in a minute or two and cached.

Layout as in Yi-6B: untied embeddings, rms_norm_eps 1e-5, bf16 weights, `<|im_start|>` 6 and `<|im_end|>` 7, no
automatic BOS. The text is plain, so the rows of the chat tokens never get a gradient and only feel the weight decay.
AdamW shrinks them by (1 - lr * decay) each step; over a long pretraining little is left of them. Ours is short, so
its embedding has a learning rate and a decay whose product, 0.1, leaves exp(-14) of a row after 300 steps, about 2e-8.
Trained rows settle near sqrt(lr / (2 * decay)), and the loss is that of a run without the decay.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from finitune.demo.yi.cache import cache_directory
from finitune.demo.yi.text import fingerprint, reference, write_chat

SPECIAL_TOKENS = (
    "<unk>", "<|startoftext|>", "<|endoftext|>", "<|Human|>", "<|Assistant|>", "<|System|>", "<|im_start|>",
    "<|im_end|>",
)  # fmt: skip
END_OF_TEXT = 2
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
Progress = Callable[[int, int, float], None]
"""Called after each step with the step, the number of steps and the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the base is made; a base is cached under the hash of its recipe and of the text."""

    vocabulary: int = 2048
    hidden: int = 160
    layers: int = 8
    steps: int = 300
    rows: int = 8
    length: int = 128
    lr: float = 3e-3
    decay: float = 0.1
    embedding_lr: float = 3e-2
    embedding_decay: float = 3.2
    warm_up: int = 20
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A model directory and chat data for it."""

    model: Path
    chat: Path
    evaluation: Path


def base(recipe: Recipe | None = None, progress: Progress | None = None) -> Base:
    """The base of `recipe`, from the cache or made now."""
    recipe = recipe or Recipe()
    key = json.dumps(dataclasses.asdict(recipe), sort_keys=True) + fingerprint()
    directory = cache_directory() / f"demo-base-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        try:
            make(recipe, unfinished, progress)
            unfinished.replace(directory)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            if not directory.exists():  # else another process was quicker
                raise
    return Base(model=directory, chat=directory / "chat.jsonl", evaluation=directory / "chat-eval.jsonl")


def main() -> None:
    """`python -m finitune.demo.yi.base [RECIPE]`: make the base and print its progress and place as JSON lines."""
    changed = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}

    def tell(step: int, steps: int, loss: float) -> None:
        print(json.dumps({"step": step, "steps": steps, "loss": loss}), flush=True)

    print(json.dumps({"directory": str(base(Recipe(**changed), tell).model)}), flush=True)


def make(recipe: Recipe, directory: Path, progress: Progress | None = None) -> None:
    """Train tokenizer and model and write them to `directory` with the chat data."""
    tokenizer = train_tokenizer(recipe.vocabulary)
    model = pretrain(recipe, text_ids(tokenizer), progress)
    tokenizer.save_pretrained(directory)
    model.bfloat16().save_pretrained(directory)
    write_chat(directory)


def train_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of the reference, special tokens first, ChatML template; padding is the end of text, as in Yi."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(reference(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        unk_token=SPECIAL_TOKENS[0],
        bos_token=SPECIAL_TOKENS[1],
        eos_token=SPECIAL_TOKENS[END_OF_TEXT],
        pad_token=SPECIAL_TOKENS[END_OF_TEXT],
        extra_special_tokens=list(SPECIAL_TOKENS[3:]),
        padding_side="right",
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def text_ids(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """All articles in one stream, each begun by the end-of-text token."""
    ids: list[int] = []
    for article in reference():
        ids += [END_OF_TEXT, *tokenizer(article, add_special_tokens=False)["input_ids"]]
    return torch.tensor(ids)


def pretrain(recipe: Recipe, ids: Tensor, progress: Progress | None = None) -> LlamaForCausalLM:
    """Next-token training on random windows of `ids`, in float32: many CPUs have no fast bfloat16."""
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = LlamaForCausalLM(llama(recipe))
    embedding = model.get_input_embeddings().weight
    others = [parameter for parameter in model.parameters() if parameter is not embedding]
    groups = [
        {"params": [embedding], "lr": recipe.embedding_lr, "weight_decay": recipe.embedding_decay},
        {"params": others, "weight_decay": recipe.decay},
    ]
    optimizer = AdamW(groups, lr=recipe.lr, betas=(0.9, 0.95))
    schedule = LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / recipe.warm_up) * (1 - s / recipe.steps))
    for step in range(1, recipe.steps + 1):
        starts = torch.randint(len(ids) - recipe.length, (recipe.rows,), generator=generator).tolist()
        window = torch.stack([ids[start : start + recipe.length] for start in starts])
        loss = model(input_ids=window, labels=window).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if progress is not None:
            progress(step, recipe.steps, loss.item())
    return model


def llama(recipe: Recipe) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.hidden * 5 // 2,
        num_hidden_layers=recipe.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=END_OF_TEXT,
        use_cache=False,
    )


if __name__ == "__main__":
    main()
