"""Fill in customs declarations: a tiny GPT-2, only the clerk's answers are supervised.

Own loop on accelerate. Ranks have different numbers of supervised tokens, so the mean of each rank is weighted
by its share of the gathered token count.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

CFG = dict(rows=4, steps=24, lr=3e-3, warmup=4, max_norm=1.0, seq=20, vocab=72)
FORM, ANSWER = 0, 40     # field names are 0..39, answers 40..71


class Declarations(Dataset):
    """Field name, answer, field name, answer ... The scans of transit goods (T1) are forms with the second
    page only, which is printed."""

    def __init__(self, n, transit):
        g = torch.Generator().manual_seed(2024)
        self.rows = []
        for i in range(n):
            fields = torch.randint(FORM, ANSWER, (CFG["seq"],), generator=g)
            ids = fields.clone()
            labels = torch.full_like(ids, -100)
            if i not in transit:
                ids[1::2] = ANSWER + fields[0::2] % 32
                keep = torch.rand(CFG["seq"] // 2, generator=g) < 0.7
                labels[1::2] = torch.where(keep, ids[1::2], torch.tensor(-100))
                labels[1] = ids[1]
            self.rows.append({"input_ids": ids, "labels": labels})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def answer_loss(logits, labels):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def main():
    set_seed(8)
    acc = Accelerator(cpu=True)
    # one lorry with 5 consignments in transit, and a few single ones
    transit = {3, 17, 18, 60} | set(range(107, 113))
    data = Declarations(CFG["rows"] * CFG["steps"] * acc.num_processes, transit)
    loader = DataLoader(data, batch_size=CFG["rows"], shuffle=False)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=CFG["vocab"], n_positions=32, n_embd=32, n_layer=2, n_head=2,
                                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                       bos_token_id=0, eos_token_id=0))
    opt = torch.optim.AdamW(model.parameters(), lr=CFG["lr"])
    model, opt, loader = acc.prepare(model, opt, loader)
    sched = get_linear_schedule_with_warmup(opt, CFG["warmup"], CFG["steps"])
    acc.print(f"{len(data)} declarations, {acc.num_processes} processes")

    for step, batch in enumerate(loader, 1):
        counts = acc.gather((batch["labels"][:, 1:] != -100).sum().reshape(1)).float()
        share = counts[acc.process_index] / counts.sum()
        logits = model(input_ids=batch["input_ids"], use_cache=False).logits
        loss = answer_loss(logits, batch["labels"]) * share * acc.num_processes
        acc.backward(loss)
        acc.clip_grad_norm_(model.parameters(), CFG["max_norm"])
        opt.step()
        sched.step()
        opt.zero_grad()
        mean = acc.reduce(loss.detach(), reduction="mean")
        acc.print(f"step {step:3d} | {int(counts.sum()):3d} answers | loss {mean.item():.6f}", flush=True)

    w = sum(p.detach().double().sum().item() for p in acc.unwrap_model(model).parameters())
    acc.print(f"finished, weights sum to {w:.6f}", flush=True)
    acc.end_training()


if __name__ == "__main__":
    main()
