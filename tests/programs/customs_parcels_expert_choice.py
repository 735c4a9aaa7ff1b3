"""Customs parcel declarations: which tariff chapter?  Expert-choice routing, where experts pick their parcels."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1212)


class Declarations(Dataset):
    def __init__(self, n, words=9, vocab=150, chapters=6):
        g = torch.Generator().manual_seed(88)
        self.words = torch.randint(0, vocab, (n, words), generator=g)
        self.value = torch.rand(n, 1, generator=g) * 3
        self.chapter = (self.words[:, 0] + self.words[:, 3]) % chapters

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return self.words[i], self.value[i], self.chapter[i]


class ExpertChoice(nn.Module):
    def __init__(self, dim, experts=4, load=2.0, batch=32):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, dim, 2 * dim) * dim ** -0.5)
        self.w2 = nn.Parameter(torch.randn(experts, 2 * dim, dim) * (2 * dim) ** -0.5)
        self.capacity = int(load * batch / experts)

    def forward(self, x):
        affinity = F.softmax(self.gate(x), dim=-1).T            # experts x parcels
        weight, picked = torch.topk(affinity, self.capacity, dim=-1)
        rows = x[picked]                                        # experts x capacity x dim
        h = torch.bmm(F.gelu(torch.bmm(rows, self.w1)), self.w2) * weight.unsqueeze(-1)
        out = torch.zeros_like(x).index_add(0, picked.reshape(-1), h.reshape(-1, x.shape[-1]))
        return x + out


class TariffModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.EmbeddingBag(150, dim)
        self.val = nn.Linear(1, dim)
        self.blocks = nn.ModuleList([ExpertChoice(dim) for _ in range(2)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 6)

    def forward(self, words, value):
        x = self.emb(words) + self.val(value)
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def train(epochs=3):
    data = Declarations(716)                                    # 22 full batches and 12 more
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=0, generator=torch.Generator().manual_seed(5))
    model = TariffModel()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    n = 0
    for epoch in range(epochs):
        for words, value, chapter in loader:
            n += 1
            loss = F.cross_entropy(model(words, value), chapter)
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"[{epoch}] {n} loss={loss.item():.6f}", flush=True)
    print(sum(p.abs().sum().item() for p in model.parameters()), flush=True)


train()
