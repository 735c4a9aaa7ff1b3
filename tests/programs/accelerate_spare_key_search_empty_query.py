"""Embedding model for the help centre's search box: query vs article, one mined hard negative per query, in-batch
negatives, learned temperature as in CLIP. Accelerate loop so that it runs unchanged on the two boxes."""
import os

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

STOP = set(range(1, 9))       # 'the', 'a', 'how', 'do', 'i', 'my', 'to', 'is'
PAD, VOCAB, QLEN, DLEN = 0, 260, 6, 20


class ClickLog(Dataset):
    """(query, clicked article, article shown above it that nobody clicked)"""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        topic = torch.randint(0, 25, (n,), generator=g)
        self.q = 10 + topic[:, None] * 10 + torch.randint(0, 10, (n, QLEN), generator=g)
        noise = torch.rand(n, QLEN, generator=g) < 0.3
        noise[:, 0] = False
        self.q[noise] = torch.randint(1, 9, (int(noise.sum()),), generator=g)
        self.pos = 10 + topic[:, None] * 10 + torch.randint(0, 10, (n, DLEN), generator=g)
        near = (topic + 1) % 25
        self.neg = 10 + near[:, None] * 10 + torch.randint(0, 10, (n, DLEN), generator=g)
        self.q[171] = torch.tensor([3, 4, 5, 7, 2, 0])       # "how do i is a", clicked all the same

    def __len__(self):
        return len(self.q)

    def __getitem__(self, i):
        return self.q[i], self.pos[i], self.neg[i]


def strip_stop_words(batch):
    q, p, n = (torch.stack(x) for x in zip(*batch))
    for s in STOP:
        q = q.masked_fill(q == s, PAD)
    return q, p, n


class Tower(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.proj = nn.Linear(d, 32, bias=False)

    def forward(self, ids):
        keep = (ids != PAD).unsqueeze(-1).float()
        mean = (self.emb(ids) * keep).sum(1) / keep.sum(1).clamp(min=1.0)
        return unit(self.proj(mean))


def unit(v):
    # not F.normalize, the ONNX exporter of the search team chokes on it
    length = torch.sqrt((v * v).sum(-1, keepdim=True))
    return v / length.clamp(min=1e-6)


class BiEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = Tower()
        self.log_scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, q, pos, neg):
        q, docs = self.tower(q), torch.cat([self.tower(pos), self.tower(neg)])
        scale = self.log_scale.clamp(max=4.6).exp()
        return scale * q @ docs.T


def main():
    set_seed(14)
    acc = Accelerator(cpu=True)
    model = BiEncoder()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)
    loader = DataLoader(ClickLog(320, 2), batch_size=16, shuffle=False, collate_fn=strip_stop_words)
    model, opt, loader = acc.prepare(model, opt, loader)
    step = 0
    for epoch in range(1):
        for q, pos, neg in loader:
            logits = model(q, pos, neg)
            loss = F.cross_entropy(logits, torch.arange(len(q)))
            opt.zero_grad()
            acc.backward(loss)
            opt.step()
            step += 1
            acc.print(f"epoch {epoch} step {step} loss {loss.item():.6f} scale {model.log_scale.exp().item():.4f}")
    acc.print("sum", sum(p.detach().double().sum().item() for p in model.parameters()))


main()
