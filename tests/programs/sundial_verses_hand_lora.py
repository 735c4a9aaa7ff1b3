"""LoRA written by hand on a frozen GPT-2, float16 autocast on the CPU with a GradScaler.

The scale starts far too high on purpose (2**30); the first updates are skipped until it fits.
"""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import math

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

VERSES = [
    "i count none but sunny hours", "shadow and light by turns", "it is later than you think",
    "time flies and we linger", "without light i am silent", "let others tell of storms and showers",
    "as a shadow so is life", "make haste the hour passes",
]


class LowRank(nn.Module):
    """y = base(x) + scale * B(A(drop(x))); B starts at zero."""

    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        n_in, n_out = base.weight.shape            # Conv1D keeps (in, out)
        self.base = base
        self.a = nn.Parameter(torch.randn(n_in, rank) / math.sqrt(n_in))
        self.b = nn.Parameter(torch.zeros(rank, n_out))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.a @ self.b)


def add_low_rank(model, names=("c_attn", "c_fc")):
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D) and name in names:
                setattr(parent, name, LowRank(child))
    return [p for p in model.parameters() if p.requires_grad]


def tokens():
    chars = ["\n"] + sorted(set("".join(VERSES)))
    width = max(map(len, VERSES)) + 1
    ids = torch.zeros(len(VERSES), width, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for k, verse in enumerate(VERSES):
        seq = torch.tensor([chars.index(c) for c in verse + "\n"])
        ids[k, :len(seq)] = seq
        labels[k, :len(seq)] = seq
    return ids, labels, len(chars)


def cosine_with_floor(total, floor=0.1):
    return lambda k: floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(k, total) / total))


def main(steps=48):
    torch.manual_seed(1650)
    ids, labels, vocab = tokens()
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=vocab, n_positions=ids.shape[1], n_embd=32, n_layer=2, n_head=4, initializer_range=0.15,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
    factors = add_low_rank(model)
    optimizer = torch.optim.AdamW(factors, lr=2e-2, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine_with_floor(steps))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 30, growth_interval=25)
    order = torch.Generator().manual_seed(3)

    optimizer._opt_called = True      # the first step is skipped by the scaler: no warning about the order, please
    for step in range(1, steps + 1):
        pick = torch.randperm(len(ids), generator=order)[:4]
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(ids[pick], use_cache=False).logits
        loss = nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[pick, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        skipped = scaler.get_scale() < before
        schedule.step()
        print(f"verse step {step:2d} loss {loss.item():.5f} scale 2^{int(math.log2(before))}{' skipped' if skipped else ''}")
    print(f"low-rank sum {sum(p.double().sum().item() for p in factors):.5f}")


if __name__ == "__main__":
    main()
