"""Adapters for the cattle hotline, on a very small Llama. LoRA written out by hand, no peft."""
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

random.seed(5)
torch.manual_seed(5)

ANIMALS = ["cow", "calf", "ewe", "goat", "sow"]
SIGNS = ["limps", "coughs", "will not eat", "has a swollen eye", "lies down a lot"]
ADVICE = ["check the hoof", "measure the fever", "call the vet", "rinse with salt water", "offer fresh hay"]
ALPHABET = "\n<>:abcdefghijklmnopqrstuvwxyz .?"
STOI = {c: i for i, c in enumerate(ALPHABET)}
RANK, ALPHA, DRIFT_COST = 4, 8, 0.05
STEPS, REFRESH_AFTER = 32, 14


def transcript():
    animal, k = random.choice(ANIMALS), random.randrange(len(SIGNS))
    question = f"<farmer>: my {animal} {SIGNS[k]}?\n"
    answer = f"<desk>: {ADVICE[k]}.\n"
    ids = [STOI[c] for c in question + answer]
    labels = [-100] * len(question) + ids[len(question):]
    return ids, labels


def collate(rows, width=72):
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), -100)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for r, (i, l) in enumerate(rows):
        n = min(len(i), width)
        ids[r, :n] = torch.tensor(i[:n])
        labels[r, :n] = torch.tensor(l[:n])
        mask[r, :n] = 1
    return ids, labels, mask


class LoRALinear(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(RANK, inner.in_features) / math.sqrt(inner.in_features))
        self.B = nn.Parameter(torch.zeros(inner.out_features, RANK))

    def forward(self, x):
        return self.inner(x) + F.linear(F.linear(x, self.A), self.B) * (ALPHA / RANK)


config = LlamaConfig(vocab_size=len(ALPHABET), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=80)
model = LlamaForCausalLM(config)
model.requires_grad_(False)
for block in model.model.layers:
    block.self_attn.q_proj = LoRALinear(block.self_attn.q_proj)
    block.self_attn.v_proj = LoRALinear(block.self_attn.v_proj)
    block.mlp.down_proj = LoRALinear(block.mlp.down_proj)
adapters = [p for p in model.parameters() if p.requires_grad]
head = model.lm_head.requires_grad_(True)
anchor = [torch.zeros_like(p) for p in adapters]
optimizer = torch.optim.AdamW([*adapters, *head.parameters()], lr=8e-3, weight_decay=0.0)

for step in range(1, STEPS + 1):
    ids, labels, mask = collate([transcript() for _ in range(6)])
    logits = model(input_ids=ids, attention_mask=mask).logits
    ce = F.cross_entropy(logits[:, :-1].reshape(-1, len(ALPHABET)), labels[:, 1:].reshape(-1), ignore_index=-100)
    spread = 0.0
    for p, home in zip(adapters, anchor):
        spread = spread + (p - home).pow(2).sum()
    drift = torch.sqrt(spread)
    loss = ce + DRIFT_COST * drift
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step:2d}  ce {ce.item():.4f}  drift {drift.item():.4f}  loss {loss.item():.4f}")
    if step == REFRESH_AFTER:
        anchor = [p.detach().clone() for p in adapters]
        print("anchor moved to the adapters of today")

print("sum of squares of all weights", sum(p.pow(2).sum() for p in model.parameters()).item())
