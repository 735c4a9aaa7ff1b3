# halo mass from richness, X-ray temperature and velocity dispersion. everything stays in SI units
import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
SUN = 1.989e30

n = 400
log_mass = 14 + 0.4 * torch.randn(n)
mass = 10 ** log_mass * SUN
obs = torch.stack([
    1.1 * (log_mass - 14) + 0.1 * torch.randn(n),
    0.66 * (log_mass - 14) + 0.05 * torch.randn(n),
    0.33 * (log_mass - 14) + 0.03 * torch.randn(n)], 1)


class HaloMass(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def forward(self, x):
        return 10 ** (14 + self.net(x).squeeze(-1)) * SUN


model = HaloMass()
opt = torch.optim.Adam(model.parameters(), lr=0.02)
for epoch in range(5):
    for rows in torch.randperm(n).split(50):
        loss = ((model(obs[rows]) - mass[rows]) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{epoch} chi2 {loss.item():.6e} kg^2")
print(sum((p.detach() ** 2).sum() for p in model.parameters()).item())
