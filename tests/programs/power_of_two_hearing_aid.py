"""Band gains of a hearing aid with weights that are powers of two (shifts only), pruned while training."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(41)


class ShiftQuant(torch.autograd.Function):
    """Nearest power of two below one; straight-through for the latent weight."""

    @staticmethod
    def forward(ctx, w, lowest):
        e = torch.log2(w.abs()).round().clamp(max=0.0)
        e = torch.where(e < lowest, torch.full_like(e, -float("inf")), e)
        ctx.save_for_backward(w)
        return w.sign() * torch.exp2(e)

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * (w.abs() <= 1.0), None


class ShiftLinear(nn.Module):
    def __init__(self, n_in, n_out, lowest=-5):
        super().__init__()
        self.weight = nn.Parameter(0.4 * torch.randn(n_out, n_in))
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.register_buffer("keep", torch.ones(n_out, n_in))
        self.lowest = lowest

    def forward(self, x):
        return F.linear(x, ShiftQuant.apply(self.weight * self.keep, self.lowest), self.bias)

    @torch.no_grad()
    def prune(self, fraction):
        k = int(fraction * self.weight.numel())
        cut = self.weight.abs().flatten().kthvalue(k).values
        self.keep.copy_((self.weight.abs() > cut).float())
        self.weight.mul_(self.keep)


BANDS = 12
net = nn.Sequential(ShiftLinear(BANDS, 24), nn.Hardtanh(), ShiftLinear(24, BANDS))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.8)

audiogram = torch.linspace(0.1, 0.9, BANDS)                      # loss per band, mild to severe
levels = torch.rand(512, BANDS)                                  # input level per band
prescribed = audiogram * (1.2 - levels) - 0.3 * (levels.mean(1, keepdim=True) - 0.5)

for step in range(1, 41):
    rows = torch.randint(0, 512, (48,))
    opt.zero_grad()
    loss = F.mse_loss(net(levels[rows]), prescribed[rows])
    loss.backward()
    opt.step()
    if step % 8 == 0 and step <= 32:
        for layer in (net[0], net[2]):
            layer.prune(0.15 * step / 8)
    zero = sum(int((m.keep == 0).sum()) for m in (net[0], net[2]))
    print(f"{step:3d}  mse {loss.item():.5f}  pruned {zero}")

print("sum of squared latent weights:", f"{sum(p.pow(2).sum().item() for p in net.parameters()):.5f}")
