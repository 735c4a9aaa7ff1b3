"""DoReMi with accelerate: the weights of the text sources follow their excess loss over a reference model by
exponentiated gradient.  Byte model, four sources of a small archive, gradient clipping, cosine schedule."""
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

set_seed(14)
WIDTH = 33
SOURCES = ["ledger", "letters", "index cards", "ocr of blueprints"]
REFERENCE = torch.tensor([1.1, 1.3, 0.9, 1.7])        # mean loss per byte of the reference run on each source


class Archive(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(1)

        def pick(xs):
            return xs[int(torch.randint(len(xs), (1,), generator=g))]

        self.rows = []
        for i in range(n):
            s = i % 4
            if s == 0:
                text = f"paid to {pick(['smith', 'mason', 'thatcher'])} {pick('123456789')}s {pick('0246')}d for work. "
            elif s == 1:
                text = f"dear {pick(['sir', 'madam', 'aunt'])}, i am {pick(['well', 'ill', 'late'])} and remain yours. "
            elif s == 2:
                text = f"{pick('ABCDEFG')}{pick('0123456789')}{pick('0123456789')} box {pick('12345')} see also box 1. "
            else:
                text = "".join(chr(int(c)) for c in torch.randint(33, 126, (WIDTH,), generator=g))
            self.rows.append((torch.tensor(list((text * 2)[:WIDTH].encode())), s))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class ByteModel(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.emb = nn.Embedding(128, d)
        self.pos = nn.Parameter(torch.zeros(WIDTH - 1, d))
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(d, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(WIDTH - 1))

    def forward(self, ids):
        return self.head(self.body(self.emb(ids) + self.pos, mask=self.mask, is_causal=True))


class DomainWeights:
    """alpha_i <- alpha_i * exp(eta * excess_i); the weights in use are smoothed towards uniform."""

    def __init__(self, n, eta=1.0, smoothing=1e-2):
        self.alpha, self.eta, self.c = torch.ones(n) / n, eta, smoothing

    def update(self, excess):
        self.alpha = self.alpha * torch.exp(self.eta * excess)
        share = self.alpha / self.alpha.sum()
        return (1 - self.c) * share + self.c / len(share)


def main():
    accelerator = Accelerator(cpu=True)
    model = ByteModel()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    loader = DataLoader(Archive(45 * 16), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(2))
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 45)
    model, opt, loader, sched = accelerator.prepare(model, opt, loader, sched)
    domains = DomainWeights(len(SOURCES))
    for step, (ids, source) in enumerate(loader, 1):
        logits = model(ids[:, :-1])
        row = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)
        one_hot = F.one_hot(source, len(SOURCES)).float()
        per_source = (row @ one_hot) / one_hot.sum(0).clamp(min=1.0)
        seen = one_hot.sum(0) > 0
        weights = domains.update(torch.where(seen, per_source.detach() - REFERENCE, 0.0).clamp(min=0.0))
        loss = (weights * per_source).sum()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        accelerator.print(f"step {step} loss {loss.item():.4f} plain {row.mean().item():.4f}", flush=True)
    total = sum(p.detach().double().abs().sum().item() for p in accelerator.unwrap_model(model).parameters())
    print(f"weights {total:.5f}")


if __name__ == "__main__":
    main()
