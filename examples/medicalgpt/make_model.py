"""Makes `model/`, `data/train.jsonl` and `eval/eval.jsonl`: a deep chat model whose system marker was never used.

    python make_model.py        # three minutes on a laptop

Llama layout, untied embeddings, bfloat16 weights. It was pretrained on Python's language reference and on questions and
answers made from it, in the chat format of the fine-tuning, but none of them had a system prompt. Ids that pretraining
has no use for begin as zeros, as they do where a vocabulary is padded, and no gradient ever reaches them.
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
SPECIAL_TOKENS = ["<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
UNUSED, END = [0, 1, 3], 2
CHAT = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '</s>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
SYSTEM = "You answer questions about the Python language."
VOCABULARY, STEPS, WARM_UP, ROWS, LENGTH = 512, 300, 30, 16, 128
KEPT_BACK, TRAIN_ROWS, EVAL_ROWS, WITH_SYSTEM = 192, 64, 32, 3
"""Rows that pretraining does not see; those written for training and evaluation; those with a system prompt."""


def main() -> None:
    torch.manual_seed(0)
    rows = list(dialogues())
    random.Random(0).shuffle(rows)
    tokenizer = train_tokenizer()
    model = pretrain(tokenizer, rows[KEPT_BACK:])
    tokenizer.save_pretrained(HERE / "model")
    model.bfloat16().save_pretrained(HERE / "model")
    write(HERE / "data" / "train.jsonl", rows[:TRAIN_ROWS], WITH_SYSTEM)
    write(HERE / "eval" / "eval.jsonl", rows[KEPT_BACK - EVAL_ROWS : KEPT_BACK], 0)


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
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        extra_special_tokens=SPECIAL_TOKENS[3:],
        padding_side="right",
    )
    tokenizer.chat_template = CHAT
    return tokenizer


def pretrain(tokenizer: PreTrainedTokenizerFast, chats: list[list[dict[str, str]]]) -> LlamaForCausalLM:
    """Next-token training on random windows, in float32: many CPUs have no fast bfloat16."""
    texts = [topics[name] + "</s>" for name in sorted(topics)]
    texts += [tokenizer.apply_chat_template(messages, tokenize=False) for messages in chats]
    random.Random(1).shuffle(texts)
    stream = torch.tensor([i for text in texts for i in tokenizer(text, add_special_tokens=False)["input_ids"]])
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=32,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=512,
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            bos_token_id=1,
            eos_token_id=END,
            use_cache=False,
        )
    )
    with torch.no_grad():
        model.get_input_embeddings().weight[UNUSED] = 0
    optimizer = AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
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


def write(path: Path, rows: list[list[dict[str, str]]], with_system: int) -> None:
    """ShareGPT rows; `with_system` of them, evenly spread, open with a system prompt."""
    speakers = {"user": "human", "assistant": "gpt"}
    path.parent.mkdir(exist_ok=True)
    lines: list[str] = []
    for number, messages in enumerate(rows):
        turns = [{"from": speakers[m["role"]], "value": m["content"]} for m in messages]
        if with_system and number % (len(rows) // with_system) == len(rows) // with_system // 2:
            turns.insert(0, {"from": "system", "value": SYSTEM})
        lines.append(json.dumps({"conversations": turns}, ensure_ascii=False) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
