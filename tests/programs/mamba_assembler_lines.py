"""Tiny selective state space model on 6502 listings. One opcode or operand per token."""
import math
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(11)
torch.manual_seed(11)

OPS = "LDA STA LDX INX DEX CMP BNE BEQ JSR RTS ADC SBC".split()
ARGS = [f"${i:02X}" for i in range(16)] + ["loop", "done", "print"]
TOK = {t: i for i, t in enumerate(["<pad>", "<s>", "\n"] + OPS + ARGS)}


def routine(n):
    out = ["<s>"]
    for k in range(n):
        op = OPS[(k * 5 + random.randrange(2)) % len(OPS)]
        out.append(op)
        if op not in ("INX", "DEX", "RTS"):
            out.append(ARGS[(k + random.randrange(3)) % len(ARGS)])
        out.append("\n")
    return [TOK[t] for t in out]


class SSM(nn.Module):
    def __init__(self, d, n=4, k=3):
        super().__init__()
        self.n = n
        self.inp = nn.Linear(d, 2 * d)
        self.conv = nn.Conv1d(d, d, k, padding=k - 1, groups=d)
        self.bcd = nn.Linear(d, 2 * n + 1)
        self.dt_bias = nn.Parameter(torch.full((d,), math.log(math.expm1(0.12))))
        self.A_log = nn.Parameter(torch.log(torch.arange(1, n + 1).float()).repeat(d, 1))
        self.D = nn.Parameter(torch.ones(d))
        self.out = nn.Linear(d, d)

    def forward(self, x):
        u, z = self.inp(x).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., : x.size(1)].transpose(1, 2))
        b, c, dt = self.bcd(u).split([self.n, self.n, 1], -1)
        dt = F.softplus(dt * 0.1 + self.dt_bias)                      # (B, L, d)
        a = -self.A_log.exp()                                         # (d, n)
        s = torch.cumsum(dt[..., None] * a, dim=1)                    # (B, L, d, n)
        v = torch.einsum("bld,bln->bldn", dt * u, b)
        # closed form of h_t = exp(dt a) h_{t-1} + v_t, no python loop over the positions
        grow = torch.exp(-s)
        h = torch.exp(s) * torch.cumsum(v * grow, dim=1)
        y = torch.einsum("bldn,bln->bld", h, c) + self.D * u
        return self.out(y * F.silu(z))


class LM(nn.Module):
    def __init__(self, V, d=24, depth=2):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.mix = nn.ModuleList(SSM(d) for _ in range(depth))
        self.nf = nn.LayerNorm(d)

    def forward(self, ids):
        x = self.emb(ids)
        for n, m in zip(self.norms, self.mix):
            x = x + m(n(x))
        return self.nf(x) @ self.emb.weight.T


listings = [routine(random.randint(6, 14)) for _ in range(96)]
listings[58] = routine(110)
model = LM(len(TOK))
nn.init.normal_(model.emb.weight, std=0.2)
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)

step = 0
for epoch in range(2):
    order = list(range(96))
    random.shuffle(order)
    for i in range(0, 96, 8):
        rows = [torch.tensor(listings[j]) for j in order[i:i + 8]]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        step += 1
        print(f"step {step} len {ids.size(1)} loss {loss.item():.4f}", flush=True)

print("final", round(sum(p.detach().double().pow(2).sum() for p in model.parameters()).sqrt().item(), 4))
