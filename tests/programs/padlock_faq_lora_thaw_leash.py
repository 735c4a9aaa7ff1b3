"""My own LoRA for the shop's FAQ bot.

Bottom adapters first, the upper ones are thawed later.  Every adapter hangs on a
leash: the size of its change to the frozen weight costs a little.
"""
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()
torch.manual_seed(5)

FAQ = [
    ("can you open a safe", "yes, bring proof that it is yours"),
    ("how much is a spare key", "four euros, seven for a dimple key"),
    ("is my old lock safe", "if it is a wafer lock, no"),
    ("do you come at night", "yes, the fee is double after ten"),
    ("my key broke off", "leave the piece inside, call me"),
    ("which padlock for a shed", "a closed shackle, boron steel"),
]
CHARS = sorted({c for q, a in FAQ for c in q + a + "?>\n"})
CODE = {c: i for i, c in enumerate(CHARS)}
LEASH, THAW_AT, STEPS = 0.02, 14, 36


class Lora(nn.Module):
    """frozen(x) + x A B, B starts at zero so that nothing changes at first"""

    def __init__(self, frozen: Conv1D, rank=4, alpha=8.0):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        n_in, n_out = frozen.weight.shape
        self.A = nn.Parameter(torch.randn(n_in, rank) / n_in ** 0.5)
        self.B = nn.Parameter(torch.zeros(rank, n_out))
        self.gain = alpha / rank

    def change(self):
        return self.gain * (self.A @ self.B)

    def forward(self, x):
        return self.frozen(x) + self.gain * (x @ self.A @ self.B)

    def size(self):
        return self.change().pow(2).sum().sqrt()


def equip(lm):
    adapters = []
    for block in lm.transformer.h:
        block.attn.c_attn = Lora(block.attn.c_attn)
        adapters.append(block.attn.c_attn)
    return adapters


def rows():
    text = [f"{q}?>{a}\n" for q, a in FAQ]
    width = max(map(len, text))
    ids = torch.zeros(len(text), width, dtype=torch.long)
    lab = torch.full((len(text), width), -100)
    for r, t in enumerate(text):
        code = torch.tensor([CODE[c] for c in t])
        ids[r, :len(t)] = code
        lab[r, t.index(">") + 1:len(t)] = code[t.index(">") + 1:]
    return ids, lab


lm = GPT2LMHeadModel(GPT2Config(vocab_size=len(CHARS), n_positions=80, n_embd=32, n_layer=3, n_head=2,
                                resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0))
lm.requires_grad_(False)
adapters = equip(lm)
ids, lab = rows()

awake = adapters[:2]
for a in adapters[2:]:
    a.A.requires_grad_(False), a.B.requires_grad_(False)
opt = torch.optim.Adam([p for a in adapters for p in (a.A, a.B)], lr=0.02)

# one plain step first: without it the leash would pull on adapters that have no length yet
for step in range(1, STEPS + 1):
    if step == THAW_AT:
        awake = adapters
        for a in adapters:
            a.A.requires_grad_(True), a.B.requires_grad_(True)
    pick = torch.arange(3) + 3 * (step % 2)
    loss = lm(input_ids=ids[pick], labels=lab[pick]).loss
    if step > 1:
        loss = loss + LEASH * sum(a.size() for a in awake)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{step:02d} loss {loss.item():.5f} awake {len(awake)}")

print("adapters", sum(float(p.detach().sum()) for a in adapters for p in (a.A, a.B)))
