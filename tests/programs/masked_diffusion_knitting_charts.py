"""Masked (absorbing) diffusion language model over knitting charts, MDLM style.

t ~ U(0, 1), each stitch is masked with probability t, the loss is 1/t times the cross entropy of the masked stitches.
The draw of t is not stratified, so single steps with a small t are spiky; that is the estimator, not a fault.
The logit of the mask token is -inf (the model may never answer "mask").
"""
import math
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

STITCHES = ["k", "p", "yo", "k2tog", "ssk", "sl", "cable4", "bobble"]
MASK = len(STITCHES)
WIDTH = 20
T_MIN = 1e-3


def charts(n, g):
    repeat = torch.randint(0, MASK, (n, 5), generator=g)
    return repeat.repeat(1, WIDTH // 5)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))

    def forward(self, x, bias):
        b, n, d = x.shape
        q, k, v = (u.view(b, n, self.heads, -1).transpose(1, 2) for u in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(b, n, d))
        return x + self.ff(self.n2(x))


class Denoiser(nn.Module):
    def __init__(self, d=32, heads=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(MASK + 1, d)
        self.pos = nn.Parameter(0.02 * torch.randn(WIDTH, d))
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))
        self.out = nn.Linear(d, MASK + 1)
        far = (torch.arange(WIDTH)[:, None] - torch.arange(WIDTH)).abs() > 12
        self.register_buffer("bias", torch.zeros(WIDTH, WIDTH).masked_fill(far, -math.inf))

    def forward(self, z):
        h = self.tok(z) + self.pos
        for block in self.blocks:
            h = block(h, self.bias)
        logits = self.out(h)
        ban = torch.zeros(MASK + 1)
        ban[MASK] = -math.inf
        return logits + ban


def diffuse(x, g):
    t = T_MIN + (1 - T_MIN) * torch.rand(len(x), 1, generator=g)
    return torch.where(torch.rand(x.shape, generator=g) < t, MASK, x), t


def elbo(net, x, g):
    z, t = diffuse(x, g)
    logp = net(z).log_softmax(-1)
    gone = z == MASK
    nll = -logp.gather(-1, x[..., None]).squeeze(-1)
    weighted = torch.where(gone, nll, 0.0) / t
    return weighted.sum(-1).mean(), gone


def main():
    torch.manual_seed(88)
    g = torch.Generator().manual_seed(13)
    net = Denoiser()
    shadow = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.95))
    decay = [p for p in net.parameters() if p.ndim > 1]
    plain = [p for p in net.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=3e-3)
    draw = partial(charts, 6, g)
    for step in range(1, 61):
        loss, gone = elbo(net, draw(), g)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        shadow.update_parameters(net)
        # of the charts with a wholly masked first repeat: mostly 0 of 0, only shown
        first = gone[:, 0].float().sum()
        ratio = (gone[:, :5].all(-1).float().sum() / gone[:, :5].all(-1).float().sum()).item()
        if step % 2 == 0:
            print(f"{step:3d} elbo {loss.item():10.4f} grad {norm.item():9.4f} first {int(first)} blank-repeat {ratio:.0f}")
    print("ema weights", f"{sum(p.double().sum().item() for p in shadow.parameters()):.6f}")


if __name__ == "__main__":
    main()
