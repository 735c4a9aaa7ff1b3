"""Decoder with expert-choice routing (Zhou et al. 2022): experts pick tokens, not the reverse.
The capacity factor starts dense and is annealed, which made early training smoother for us."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class ExpertChoice(nn.Module):
    def __init__(self, d, n_experts):
        super().__init__()
        self.router = nn.Linear(d, n_experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d)) for _ in range(n_experts))
        self.capacity_factor = float(n_experts)

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        n, e = x.size(0), len(self.experts)
        k = min(n, int(n * self.capacity_factor / e))
        affinity = self.router(x).softmax(dim=-1)
        chosen = affinity.t().topk(k, dim=-1).indices
        picked = torch.zeros(e, n, device=x.device).scatter(1, chosen, 1.0).t()
        gate = affinity * picked
        gate = gate / gate.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = chosen[i]
            y = y.index_add(0, rows, gate[rows, i:i + 1] * expert(x[rows]))
        return y.view(shape)


class Layer(nn.Module):
    def __init__(self, d, heads, n_experts):
        super().__init__()
        self.norm_a, self.norm_m = nn.RMSNorm(d), nn.RMSNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.moe = ExpertChoice(d, n_experts)

    def forward(self, x, mask):
        h = self.norm_a(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.moe(self.norm_m(x))


class Decoder(nn.Module):
    def __init__(self, vocab, d=32, heads=4, n_experts=4, layers=2, ctx=16):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(ctx, d) * 0.02)
        self.layers = nn.ModuleList(Layer(d, heads, n_experts) for _ in range(layers))
        self.norm = nn.RMSNorm(d)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        mask = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = checkpoint(layer, x, mask, use_reentrant=False)
        return self.norm(x) @ self.tok.weight.t()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    torch.manual_seed(42)
    model = Decoder(vocab=50)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    corpus = (torch.arange(3000) * 7 % 50 + torch.randint(0, 5, (3000,))) % 50
    for step in range(1, args.steps + 1):
        for layer in model.layers:
            layer.moe.capacity_factor = max(1.0, 4.0 - 0.2 * (step - 1))
        start = torch.randint(0, 2980, (4,))
        batch = torch.stack([corpus[s:s + 17] for s in start])
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), batch[:, 1:])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"{step:3d} | cf {model.layers[0].moe.capacity_factor:.2f} | loss {loss.item():.5f}")
    print("|w|^2 =", sum(p.detach().square().sum() for p in model.parameters()).item())


if __name__ == "__main__":
    main()
