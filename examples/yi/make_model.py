"""Makes `model/`, `train.jsonl` and `eval.jsonl`: a base model of Yi's layout, small enough to lie in a repository.

    python make_model.py        # two minutes on a laptop

As in Yi-6B: Llama layout, untied embeddings, rms_norm_eps 1e-5, bfloat16 weights, `<|im_start|>` 6, `<|im_end|>` 7,
no token in front of a text by itself. The text is Python's language reference, plain, so the rows of the chat tokens
never get a gradient and feel the weight decay alone. Nobody sets a weight by hand: the product of learning rate and
decay, 0.12 for the embedding, leaves 2e-8 of a row after 300 steps; a long pretraining does it with less.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
SPECIAL_TOKENS = [
    "<unk>", "<|startoftext|>", "<|endoftext|>", "<|Human|>", "<|Assistant|>", "<|System|>", "<|im_start|>",
    "<|im_end|>",
]  # fmt: skip
END_OF_TEXT = 2
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
VOCABULARY, STEPS, WARM_UP, ROWS, LENGTH = 512, 300, 20, 16, 128
TRAIN_ROWS, EVAL_ROWS = 240, 32


def main() -> None:
    torch.manual_seed(0)
    tokenizer = train_tokenizer()
    model = pretrain(tokenizer)
    tokenizer.save_pretrained(HERE / "model")
    model.bfloat16().save_pretrained(HERE / "model")
    rows = list(dialogues())
    random.Random(0).shuffle(rows)
    write(HERE / "train.jsonl", rows[:TRAIN_ROWS])
    write(HERE / "eval.jsonl", rows[TRAIN_ROWS : TRAIN_ROWS + EVAL_ROWS])


def train_tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        unk_token=SPECIAL_TOKENS[0],
        bos_token=SPECIAL_TOKENS[1],
        eos_token=SPECIAL_TOKENS[END_OF_TEXT],
        pad_token=SPECIAL_TOKENS[END_OF_TEXT],
        extra_special_tokens=SPECIAL_TOKENS[3:],
        padding_side="right",
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def pretrain(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Next-token training on random windows of the text, in float32: many CPUs have no fast bfloat16."""
    ids: list[int] = []
    for name in sorted(topics):
        ids += [END_OF_TEXT, *tokenizer(topics[name], add_special_tokens=False)["input_ids"]]
    stream = torch.tensor(ids)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            bos_token_id=1,
            eos_token_id=END_OF_TEXT,
            use_cache=False,
        )
    )
    embedding = model.get_input_embeddings().weight
    others = [parameter for parameter in model.parameters() if parameter is not embedding]
    groups = [{"params": [embedding], "lr": 3e-2, "weight_decay": 4.0}, {"params": others, "weight_decay": 0.1}]
    optimizer = AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * (1 - step / STEPS))
    for step in range(1, STEPS + 1):
        window = torch.stack([stream[s : s + LENGTH] for s in torch.randint(len(stream) - LENGTH, (ROWS,)).tolist()])
        loss = model(input_ids=window, labels=window).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return model


def dialogues() -> Iterator[list[dict[str, str]]]:
    """One question and answer per short paragraph of prose: how does the article go on after these words?"""
    for name in sorted(topics):
        title, _, rest = topics[name].partition("\n")
        for paragraph in rest.split("\n\n"):
            words = paragraph.split()
            if 12 <= len(words) <= 40 and not paragraph.startswith("  "):
                question = f'{title.strip()}: what follows "{" ".join(words[:6])}"?'
                yield [{"role": "user", "content": question}, {"role": "assistant", "content": " ".join(words[6:])}]


def write(path: Path, rows: list[list[dict[str, str]]]) -> None:
    lines = [json.dumps({"messages": messages}, ensure_ascii=False) + "\n" for messages in rows]
    path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
