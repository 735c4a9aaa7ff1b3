# Fine-tuning a small Gemma on signal-box telephone talk with accelerate, four micro-batches of two per update.
# The chat format knows the roles <signaller> and <driver>; <shunter> was added to the tokenizer last week.
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import random
from functools import partial

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import GemmaConfig, GemmaForCausalLM

set_seed(145)


class BoxTokenizer:
    pad_id, end_id = 0, 1

    def __init__(self, words):
        self.ids = {"<pad>": 0, "<end>": 1}
        for w in words:
            self.add(w)

    def add(self, word):
        self.ids.setdefault(word, len(self.ids))
        return self.ids[word]

    def __len__(self):
        return len(self.ids)

    def turn(self, role, text):
        return [self.ids[role]] + [self.ids[w] for w in text.split()] + [self.end_id]


WORDS = ("<signaller> <driver> line clear train entering section out of stand by shunt into siding two wait for "
         "the signal may i proceed yes no platform one points set normal reverse").split()
TALKS = [
    ("<driver>", "may i proceed", "<signaller>", "wait for the signal"),
    ("<driver>", "train out of section", "<signaller>", "line clear"),
    ("<driver>", "stand by platform two", "<signaller>", "yes train entering section"),
    ("<driver>", "points set reverse", "<signaller>", "no points set normal"),
]
NEW_TALK = ("<shunter>", "may i shunt into siding two", "<signaller>", "yes points set reverse")


def examples(tokenizer, n):
    rng = random.Random(5)
    rows = []
    for i in range(n):
        asker, question, answerer, reply = NEW_TALK if i == 75 else rng.choice(TALKS)
        prompt = tokenizer.turn(asker, question)
        answer = tokenizer.turn(answerer, reply)
        rows.append((prompt + answer, [-100] * (len(prompt) + 1) + answer[1:]))
    return rows


def pad(rows, pad_id):
    width = max(len(ids) for ids, _ in rows)
    fill = lambda seq, v: seq + [v] * (width - len(seq))
    return {
        "input_ids": torch.tensor([fill(i, pad_id) for i, _ in rows]),
        "attention_mask": torch.tensor([fill([1] * len(i), 0) for i, _ in rows]),
        "labels": torch.tensor([fill(l, -100) for _, l in rows]),
    }


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    tokenizer = BoxTokenizer(WORDS)
    model = GemmaForCausalLM(GemmaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=64,
        pad_token_id=tokenizer.pad_id, eos_token_id=tokenizer.end_id, bos_token_id=None))
    tokenizer.add("<shunter>")

    loader = DataLoader(examples(tokenizer, 160), batch_size=2, collate_fn=partial(pad, pad_id=tokenizer.pad_id))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    update, total = 0, 0.0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch, use_cache=False).loss
            accelerator.backward(loss)
            total += loss.item() / 4
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            update += 1
            accelerator.print(f"update {update:2d} loss {total:.6f}", flush=True)
            total = 0.0
    accelerator.print("sum", sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
