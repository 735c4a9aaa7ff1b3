"""Which month is an almanac entry from?  Streaming tf-idf (sparse) in front of a small classifier, with accelerate."""
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader

VOCAB, MONTHS, WARM_UP, BATCH = 240, 12, 1500, 16


class Almanac(torch.utils.data.Dataset):
    """Entries in the order of printing: list of word ids, month."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        rank = torch.arange(1, VOCAB + 1).float()
        self.rows = []
        for _ in range(n):
            month = int(torch.randint(MONTHS, (1,), generator=g))
            weight = rank ** -1.4
            weight[20 + 5 * month:25 + 5 * month] *= 25
            length = int(torch.randint(8, 20, (1,), generator=g))
            self.rows.append((torch.multinomial(weight, length, True, generator=g), month))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    doc = torch.cat([torch.full_like(w, i) for i, (w, _) in enumerate(rows)])
    word = torch.cat([w for w, _ in rows])
    counts = torch.sparse_coo_tensor(torch.stack([doc, word]), torch.ones(len(word)), (len(rows), VOCAB)).coalesce()
    return counts.indices(), counts.values(), torch.tensor([m for _, m in rows])


class StreamingTfIdf(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("documents", torch.zeros(()))
        self.register_buffer("frequency", torch.zeros(VOCAB))

    @torch.no_grad()
    def observe(self, indices, n):
        self.frequency.index_add_(0, indices[1], torch.ones(indices.shape[1]))
        self.documents += n

    def forward(self, indices, tf, n):
        idf = torch.log(self.documents / self.frequency[indices[1]])
        value = torch.log1p(tf) * idf
        length = torch.zeros(n).index_add(0, indices[0], value.square()).sqrt()
        if self.training:
            self.observe(indices, n)
        return torch.sparse_coo_tensor(indices, value / length[indices[0]], (n, VOCAB))


class MonthModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.tfidf = StreamingTfIdf()
        self.words = nn.Parameter(torch.randn(VOCAB, dim) * 0.3)
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(dim, MONTHS))

    def forward(self, indices, tf, n):
        return self.head(torch.sparse.mm(self.tfidf(indices, tf, n), self.words))


def main():
    set_seed(1)
    accelerator = Accelerator(cpu=True)
    model = MonthModel()
    for row in DataLoader(Almanac(WARM_UP, seed=44), batch_size=WARM_UP, collate_fn=collate):
        model.tfidf.observe(row[0], WARM_UP)
    loader = DataLoader(Almanac(40 * BATCH, seed=45), batch_size=BATCH, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for step, (indices, tf, month) in enumerate(loader, start=1):
        loss = F.cross_entropy(model(indices, tf, len(month)), month)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step:2d}  loss {loss.item():.4f}", flush=True)

    accelerator.print(f"{model.words.detach().norm().item():.6f}")


if __name__ == "__main__":
    main()
