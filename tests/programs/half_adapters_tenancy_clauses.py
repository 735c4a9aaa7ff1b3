"""Float16 LoRA adapters (own layer, no peft) on a frozen float32 clause classifier for tenancy agreements.

Masters are float32, the adapter's matrices are cast to float16 on use, since that is what the serving kernel has.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class HalfLoRA(nn.Module):
    def __init__(self, base: nn.Linear, r: int, alpha: float):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad = False
        self.A = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scaling = alpha / r

    def forward(self, x):
        low = F.linear(x.half(), self.A.half())
        low = low * self.scaling                    # on the small side, as the kernel does
        return self.base(x) + F.linear(low, self.B.half()).float()


class ClauseNet(nn.Module):
    """Sum pooling: how often 'landlord' stands there is the signal."""

    def __init__(self, vocab=300, d=64, labels=5):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.up = nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)
        self.cls = nn.Linear(d, labels)

    def forward(self, docs):
        pooled = torch.stack([self.emb(d).sum(0) for d in docs])
        return self.cls(F.relu(self.norm(self.up(pooled))))


def inject(model, r=8, alpha=64):
    for p in model.parameters():
        p.requires_grad_(False)
    model.up = HalfLoRA(model.up, r, alpha)
    model.cls.requires_grad_(True)
    return [p for p in model.parameters() if p.requires_grad]


class Agreements:
    def __init__(self, n=120, seed=17):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 5, (n,), generator=g)
        self.docs = []
        for i in range(n):
            size = int(torch.randint(20, 90, (1,), generator=g))
            d = torch.randint(0, 300, (size,), generator=g)
            d[: size // 3] = d[: size // 3] % 60 + 60 * self.y[i]
            self.docs.append(d)
        # scanned agreement whose OCR read the dotted signature lines: one token, over and over
        self.docs[86] = torch.cat([self.docs[86], torch.full((14000,), 211)])

    def batches(self, size):
        for i in range(0, len(self.docs), size):
            yield self.docs[i:i + size], self.y[i:i + size]


def run():
    torch.manual_seed(12)
    model = ClauseNet()
    params = inject(model)
    opt = torch.optim.AdamW(params, lr=3e-3, betas=(0.9, 0.98))
    data = Agreements()
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=5e-3, total_steps=31)
    step = 0
    for docs, y in data.batches(4):
        step += 1
        loss = F.cross_entropy(model(docs), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        sched.step()
        tokens = sum(len(d) for d in docs)
        print(f"[{step:02d}/30] loss={loss.item():.6f} tokens={tokens}")
    print("trained weights sum to", f"{sum(p.detach().double().sum() for p in params).item():.8f}")


if __name__ == "__main__":
    run()
