"""Byte LM on patent claims: the loss is the code length of a whole claim in bits, and the claims get longer."""
import math

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(19)
BYTES, D = 64, 48


class Mixer(nn.Module):
    """Causal token mixing by exponential moving averages of several lengths."""

    def __init__(self, d, longest=96):
        super().__init__()
        half_life = torch.logspace(0, 2, d)
        decay = 0.5 ** (1 / half_life)
        gap = torch.arange(longest)[:, None] - torch.arange(longest)[None, :]
        log_kernel = gap.clamp(min=0)[..., None] * decay.log()
        log_kernel = log_kernel.masked_fill((gap < 0)[..., None], float("-inf"))
        self.register_buffer("kernel", log_kernel.softmax(1))
        self.gate = nn.Linear(d, d)

    def forward(self, x):
        t = x.shape[1]
        return torch.einsum("tsd,bsd->btd", self.kernel[:t, :t], x) * torch.sigmoid(self.gate(x))


class ClaimLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(BYTES, D, sparse=True)
        self.mix = nn.ModuleList(Mixer(D) for _ in range(2))
        self.ff = nn.ModuleList(nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 96), nn.Mish(), nn.Linear(96, D))
                                for _ in range(2))
        self.head = nn.Linear(D, BYTES)
        self.unused_critic = nn.Linear(D, 1)

    def forward(self, ids):
        x = self.emb(ids)
        for mix, ff in zip(self.mix, self.ff):
            x = x + mix(x)
            x = x + ff(x)
        return self.head(x)


model = ClaimLM()
dense = [p for n, p in model.named_parameters() if n != "emb.weight"]
opt = torch.optim.AdamW(dense, lr=2e-3)
opt_emb = torch.optim.SparseAdam([model.emb.weight], lr=2e-3)
plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 5))
shortest = float("inf")
for step in range(40):
    length = 6 + 2 * step
    ids = torch.cumsum(torch.randint(1, 4, (12, length + 1)), 1) % BYTES
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids[:, :-1])
    nll = F.cross_entropy(logits.float().transpose(1, 2), ids[:, 1:], reduction="none")
    bits = nll.sum() / math.log(2)
    opt.zero_grad()
    opt_emb.zero_grad()
    bits.backward()
    nn.utils.clip_grad_norm_(dense, 1.0)
    opt.step()
    opt_emb.step()
    plan.step()
    shortest = min(shortest, bits.item())
    print(f"step {step} bits {bits.item():.2f} per byte {bits.item() / ids[:, 1:].numel():.4f} least {shortest:.2f}")
print("weights", sum(p.detach().pow(2).sum().item() for p in model.parameters()))
