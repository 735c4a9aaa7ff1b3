"""Learned codec for under-ice seal calls: analysis, quantiser, factorised entropy bottleneck, synthesis.
float16 autocast with a gradient scaler; the rate-distortion lambda doubles on a ladder; a second
optimizer keeps the quantiles of the bottleneck (the auxiliary loss of Balle et al.)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

FRAME, LATENT, BATCH, STEPS = 64, 12, 32, 48
LADDER = {1: 4.0, 13: 8.0, 25: 16.0, 37: 64.0}


class LowerBound(torch.autograd.Function):
    """max(x, bound), but the gradient passes where it would pull x up again"""

    @staticmethod
    def forward(ctx, x, bound):
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.clamp(min=bound)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return torch.where((x >= ctx.bound) | (g < 0), g, torch.zeros_like(g)), None


class EntropyBottleneck(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))
        self.quantiles = nn.Parameter(torch.tensor([-8.0, 0.0, 8.0]).repeat(channels, 1))

    def cdf(self, y):
        return torch.sigmoid((y - self.loc) / self.log_scale.exp())

    def forward(self, y, gen):
        y = y + torch.rand(y.shape, generator=gen) - 0.5      # noise instead of rounding
        likelihood = LowerBound.apply(self.cdf(y + 0.5) - self.cdf(y - 0.5), 1e-9)
        return y, -torch.log2(likelihood).sum(1)

    def auxiliary(self):
        z = (self.quantiles - self.loc.detach()[:, None]) / self.log_scale.detach().exp()[:, None]
        tail = torch.tensor(1e-4)
        want = torch.stack([tail.logit(), torch.tensor(0.0), (1 - tail).logit()])
        return (z - want).abs().mean()


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.analysis = nn.Sequential(nn.Linear(FRAME, 96), nn.GELU(), nn.Linear(96, LATENT))
        self.bottleneck = EntropyBottleneck(LATENT)
        self.synthesis = nn.Sequential(nn.Linear(LATENT, 96), nn.GELU(), nn.Linear(96, FRAME))

    def forward(self, x, gen):
        with torch.autocast("cpu", dtype=torch.float16):
            y = self.analysis(x)
        y, bits = self.bottleneck(4 * y.float(), gen)
        with torch.autocast("cpu", dtype=torch.float16):
            out = self.synthesis(y)
        return out.float(), bits


def calls(gen):
    """down-sweeps, and now and then the crack of the ice: louder than all else"""
    t = torch.linspace(0, 1, FRAME)
    f0 = 4 + 8 * torch.rand(BATCH, 1, generator=gen)
    x = torch.sin(2 * torch.pi * f0 * (t - 0.35 * t * t))
    x = x * torch.rand(BATCH, 1, generator=gen) + 0.05 * torch.randn(BATCH, FRAME, generator=gen)
    crack = torch.rand(BATCH, 1, generator=gen) < 0.01
    return torch.where(crack, x * 3, x)


def main():
    torch.manual_seed(6)
    gen = torch.Generator().manual_seed(60)
    codec = Codec()
    aux_params = [codec.bottleneck.quantiles]
    main_params = [p for n, p in codec.named_parameters() if not n.endswith("quantiles")]
    opt, aux_opt = torch.optim.Adam(main_params, lr=2e-3), torch.optim.Adam(aux_params, lr=2e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=10)
    lam = None
    for step in range(1, STEPS + 1):
        lam = LADDER.get(step, lam)
        x = calls(gen)
        out, bits = codec(x, gen)
        rate, distortion = bits.mean() / FRAME, F.mse_loss(out, x)
        loss = rate + lam * distortion
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(main_params, 1.0)
        scaler.step(opt)
        scaler.update()
        aux = codec.bottleneck.auxiliary()
        aux_opt.zero_grad()
        aux.backward()
        aux_opt.step()
        print(f"{step:2d} lambda {lam:4.0f} loss {loss.item():.6f} rate {rate.item():.6f} aux {aux.item():.5f} "
              f"scale 2^{torch.tensor(scaler.get_scale()).log2().item():.0f}", flush=True)


if __name__ == "__main__":
    main()
