"""A top-k sparse autoencoder on the hidden layer of a small network that judges chess endings.

Trained in float16 with a loss scaler; codes that never fire are given new directions now and then.
"""
import torch
from torch import nn

HIDDEN, CODES, K = 16, 96, 4
gen = torch.Generator().manual_seed(99)


def endings(n):
    return torch.randint(0, 2, (n, 20), generator=gen).float()


class TopKCodes(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(HIDDEN))
        self.enc = nn.Linear(HIDDEN, CODES)
        self.dec = nn.Parameter(torch.nn.functional.normalize(torch.randn(CODES, HIDDEN), dim=1))

    def forward(self, h):
        raw = self.enc(h - self.centre)
        least = raw.topk(K, dim=-1).values[..., -1:]
        kept = raw.masked_fill(raw < least, float("-inf"))
        codes = kept.clamp_min(0)
        return codes @ self.dec.to(codes.dtype) + self.centre, kept


def renew(sae, opt, fired, residue):
    idle = (fired.log10() == -torch.inf).nonzero().flatten()
    with torch.no_grad():
        worst = residue.pow(2).sum(1).topk(min(len(idle), 24)).indices
        idle = idle[:len(worst)]
        fresh = nn.functional.normalize(residue[worst], dim=1)
        sae.dec.data[idle] = fresh
        sae.enc.weight.data[idle] = 0.6 * fresh
        sae.enc.bias.data[idle] = 0.0
        for p in (sae.dec, sae.enc.weight, sae.enc.bias):
            for key in ("exp_avg", "exp_avg_sq"):
                opt.state[p][key][idle] = 0.0
    return len(idle)


def main():
    torch.manual_seed(14)
    judge = nn.Sequential(nn.Linear(20, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 1)).requires_grad_(False)
    nn.init.normal_(judge[0].weight, std=0.8)
    sae = TopKCodes()
    opt = torch.optim.Adam(sae.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 26, growth_interval=12)
    fired = torch.zeros(CODES)
    for step in range(1, 41):
        h = judge[1](judge[0](endings(64)))
        with torch.autocast("cpu", dtype=torch.float16):
            rebuilt, kept = sae(h)
            loss = (rebuilt.float() - h).pow(2).mean()
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        fired += (kept > 0).sum(0)
        rate = (fired / (64 * step)).log10()
        line = f"{step:3d} loss {loss.item():.5f} scale 2^{torch.tensor(scaler.get_scale()).log2().item():.0f} rarest code 10^{rate.min().item():.2f}"
        if step in (18, 30):
            line += f" renewed {renew(sae, opt, fired, (h - rebuilt.float()).detach())}"
        print(line)
    print("squares of the autoencoder:", sum(p.detach().pow(2).sum().item() for p in sae.parameters()))


main()
