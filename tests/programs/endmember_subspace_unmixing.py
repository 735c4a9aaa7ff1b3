import numpy as np, torch

# Hyperspectral unmixing by a subspace of non-negative endmember spectra.
# E = relu(P) holds one spectrum per column; pixels are projected on span(E) by means of a QR decomposition.
# A sparsity price per endmember prunes those which the scene does not need.

rng = np.random.default_rng(77)
torch.manual_seed(77)
BANDS, TRUE_K, K, PIXELS, STEPS = 40, 3, 4, 600, 60

wave = np.linspace(0.4, 2.5, BANDS)
def spectrum(centres, widths):
    s = 0.1 * np.ones(BANDS)
    for c, w in zip(centres, widths):
        s += np.exp(-0.5 * ((wave - c) / w) ** 2)
    return s
library = np.stack([spectrum([0.55, 0.9], [.05, .3]), spectrum([1.7], [.5]), spectrum([2.2, 1.1], [.1, .12])], 1)
abundance = rng.dirichlet(np.ones(TRUE_K), PIXELS)
scene = abundance @ library.T + 0.01 * rng.standard_normal((PIXELS, BANDS))
scene = torch.tensor(scene, dtype=torch.float32)

class Unmixer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        start = scene[torch.randperm(PIXELS)[:K]].T + 0.05 * torch.rand(BANDS, K)
        start[:, -1] = 0.15 * torch.rand(BANDS)         # one spare, in case there is a fourth material
        self.P = torch.nn.Parameter(start)

    def forward(self, pixels):
        E = torch.relu(self.P)
        Q, R = torch.linalg.qr(E)
        return pixels @ Q @ Q.T, E

net = Unmixer()
price = torch.tensor([1e-4, 1e-4, 1e-4, 5e-2])
opt = torch.optim.Adam(net.parameters(), lr=0.008)
for step in range(1, STEPS + 1):
    pixels = scene[torch.as_tensor(rng.choice(PIXELS, 80, replace=False))]
    back, E = net(pixels)
    fit = (back - pixels).pow(2).mean()
    loss = fit + (E.sum(0) * price).sum()
    opt.zero_grad(); loss.backward(); opt.step()
    print(step, "%.7f" % fit.item(), "%.6f" % loss.item(), "active", int((E > 0).any(0).sum()))
print("final", net.P.detach().abs().sum().item())
