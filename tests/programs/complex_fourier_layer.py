import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


class SpectralConv1d(nn.Module):
    """Fourier neural operator layer, complex weights"""

    def __init__(self, channels, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, dtype=torch.cfloat) / channels)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :self.modes] = torch.einsum("bim,iom->bom", spectrum[:, :, :self.modes], self.weight)
        return torch.fft.irfft(out, n=x.shape[-1])


torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(weight_norm(nn.Conv1d(1, 6, 1)), SpectralConv1d(6, 5), nn.GELU(), spectral_norm(nn.Conv1d(6, 1, 1)))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
grid = torch.linspace(0, 6.2832, 32)
for i in range(14):
    a = torch.rand(8, 1, 1) + 0.5
    u = torch.sin(a * grid)
    loss = (net(u) - a * torch.cos(a * grid)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
print("weights", sum(p.detach().abs().double().sum().item() for p in net.parameters()))
