"""Soft prompts for the ferry company's FAQ bot; one-minus-sqrt style cool-down to exactly zero."""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import itertools

import torch
from peft import PromptTuningConfig, TaskType, get_peft_model
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

FAQ = {
    "when does the first boat leave": "at six on weekdays",
    "may i take a dog": "yes on a short lead",
    "is the cafe open in winter": "only at weekends",
    "how long is the crossing": "forty minutes in calm water",
    "can i bring a bicycle": "bicycles travel free",
    "do you take cards": "cards and coins both",
    "where do i park": "behind the old fish hall",
    "is there a night boat": "no the last is at ten",
    "what if there is fog": "ring the harbour office",
    "are children free": "under five they are",
    "can i book a cabin": "there are no cabins",
}
EPOCHS, BATCH, BASE_LR = 12, 2, 0.3


class PowerCooldown(LRScheduler):
    """lr = base * (1 - t / total) ** power, vectorised over the parameter groups."""

    def __init__(self, optimizer, total, power=0.5, last_epoch=-1):
        self.total, self.power = total, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        base = torch.tensor(self.base_lrs, dtype=torch.float64)
        left = torch.full_like(base, 1.0 - self.last_epoch / self.total)
        return (base * left.pow(self.power)).tolist()


class CharTable:
    def __init__(self, texts):
        self.itos = ["<pad>", "<sep>", "<eos>"] + sorted(set("".join(texts)))
        self.stoi = {c: i for i, c in enumerate(self.itos)}

    def encode(self, q, a):
        q, a = [self.stoi[c] for c in q], [self.stoi[c] for c in a]
        return q + [1] + a + [2], [-100] * (len(q) + 1) + a + [2]


def collate(rows):
    width = max(len(ids) for ids, _ in rows)
    pad = lambda seq, v: seq + [v] * (width - len(seq))
    return {
        "input_ids": torch.tensor([pad(i, 0) for i, _ in rows]),
        "attention_mask": torch.tensor([pad([1] * len(i), 0) for i, _ in rows]),
        "labels": torch.tensor([pad(l, -100) for _, l in rows]),
    }


def build(table):
    base = GPT2LMHeadModel(GPT2Config(
        vocab_size=len(table.itos), n_positions=96, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=2, eos_token_id=2, pad_token_id=0, initializer_range=0.15))
    base.config.use_cache = False
    return get_peft_model(base, PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=8))


if __name__ == "__main__":
    set_seed(99)
    table = CharTable(list(itertools.chain(FAQ, FAQ.values())))
    rows = [table.encode(q, a) for q, a in FAQ.items()]
    loader = DataLoader(rows, BATCH, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(3))
    model = build(table)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=BASE_LR, weight_decay=0.01)

    updates_per_epoch = len(rows) // BATCH
    scheduler = PowerCooldown(optimizer, total=EPOCHS * updates_per_epoch)

    step = 0
    for epoch in range(EPOCHS):
        for batch in loader:
            step += 1
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch:02d} update {step:03d} loss {loss.item():.6f}")
            scheduler.step()

    print("virtual tokens sum", float(sum(p.detach().double().sum() for p in trainable)))
