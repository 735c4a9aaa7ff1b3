# next-token model for support tickets. rare tokens count more: each class is weighted by the
# inverse of its recent frequency, which is tracked while we train
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
VOCAB = 64


class RecencyWeightedCE(nn.Module):
    def __init__(self, vocab, momentum=0.6):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("freq", torch.full((vocab,), 1.0 / vocab, dtype=torch.float16))

    @torch.no_grad()
    def update(self, target):
        now = torch.bincount(target, minlength=self.freq.numel()) / target.numel()
        self.freq.mul_(self.momentum).add_(now.half(), alpha=1 - self.momentum)

    def forward(self, logits, target):
        self.update(target)
        weight = self.freq.reciprocal()
        weight = weight.float() / weight.float().mean()
        return F.cross_entropy(logits, target, weight=weight)


class ConvLM(nn.Module):
    """causal gated convolutions, after Dauphin et al."""

    def __init__(self, d=32, kernel=4, depth=3):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.convs = nn.ModuleList([nn.Conv1d(d, 2 * d, kernel) for _ in range(depth)])
        self.kernel = kernel
        self.out = nn.Linear(d, VOCAB)

    def forward(self, ids):
        x = self.emb(ids).transpose(1, 2)
        for conv in self.convs:
            x = x + F.glu(conv(F.pad(x, (self.kernel - 1, 0))), dim=1)
        return self.out(x.transpose(1, 2))


model, criterion = ConvLM(), RecencyWeightedCE(VOCAB)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
gen = torch.Generator().manual_seed(5)
zipf = 1.0 / torch.arange(1, VOCAB + 1).float() ** 1.1
zipf[50:] = 0.0     # reserved ids
for step in range(1, 36):
    ids = torch.multinomial(zipf, 8 * 25, replacement=True, generator=gen).view(8, 25)
    logits = model(ids[:, :-1])
    loss = criterion(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.4f}")
print(sum(float(p.detach().square().sum()) for p in model.parameters()))
