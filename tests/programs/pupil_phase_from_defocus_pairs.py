import math, torch
from torch import nn, fft

torch.manual_seed(5)
torch.set_printoptions(precision=4)
N = 32

def disc(n):
    ax = torch.linspace(-1, 1, n)
    yy, xx = torch.meshgrid(ax, ax, indexing='ij')
    return xx, yy, (xx ** 2 + yy ** 2 <= 0.36)

xx, yy, aperture = disc(N)
rho2 = (xx ** 2 + yy ** 2) / 0.36
truth = 1.1 * (2 * rho2 - 1) + 0.7 * (xx ** 2 - yy ** 2) / 0.36 + 0.5 * xx * (3 * rho2 - 2) / 0.6

class Telescope(nn.Module):
    """Field in the pupil, every sample of modulus one; images in and out of focus."""
    def __init__(self):
        super().__init__()
        self.field = nn.Parameter(torch.ones(N, N, dtype=torch.complex64))
        self.register_buffer('stop', aperture.to(torch.complex64))

    def image(self, waves):
        shift = torch.polar(torch.ones(N, N), waves * (2 * rho2 - 1))
        psf = fft.fftshift(fft.fft2(self.field * self.stop * shift, norm='ortho'))
        return psf.real ** 2 + psf.imag ** 2

    def forward(self, planes):
        return torch.stack([self.image(w) for w in planes])

planes = [0.0, 2.0, -2.0]
scope = Telescope()
with torch.no_grad():
    truth_scope = Telescope()
    truth_scope.field.copy_(torch.polar(torch.ones(N, N), truth))
    frames = truth_scope(planes)
    frames += 0.002 * torch.randn(frames.shape)
    hot = torch.rand(frames.shape) < 0.01
    frames[hot] = math.inf

good = ~hot
target = frames.masked_fill(hot, 0.0)

opt = torch.optim.Adam(scope.parameters(), lr=0.15)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=12, eta_min=0.0)
best, best_field = math.inf, None

for it in range(36):
    opt.zero_grad(set_to_none=True)
    diff = (scope(planes) - target) * good
    loss_db = 10 * torch.log10(diff.pow(2).mean())
    loss_db.backward()
    opt.step()
    lr = sched.get_last_lr()[0]
    sched.step()
    with torch.no_grad():
        scope.field.div_(scope.field.abs())
    note = ''
    if loss_db.item() < best:
        best, best_field = loss_db.item(), scope.field.detach().clone()
    if sched.T_cur == 0 and it < 35:
        with torch.no_grad():
            kick = torch.polar(torch.ones(N, N), 0.3 * torch.randn(N, N))
            scope.field.copy_(best_field * kick)
        opt.state.clear()
        note = ' (kicked)'
    print(f'{it + 1:3d}  lr {lr:.4f}  residual {loss_db.item():8.3f} dB  best {best:8.3f} dB{note}')

with torch.no_grad():
    phase = torch.angle(scope.field * truth_scope.field.conj())[aperture]
    strehl = torch.exp(-phase.var())
print('strehl estimate %.4f' % strehl.item())
print('power in the pupil field %.4f' % scope.field.abs().pow(2).sum().item())
