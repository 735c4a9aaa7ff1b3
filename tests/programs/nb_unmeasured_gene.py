import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
# mini scVI. negative binomial likelihood, 30 genes x 400 cells
torch.manual_seed(2)

def nb_nll(x, mu, theta, eps=1e-8):
    ll = theta * torch.log(theta / (theta + mu) + eps) + x * torch.log(mu / (theta + mu) + eps)
    ll = ll + torch.lgamma(x + theta) - torch.lgamma(theta)
    ll = ll - torch.lgamma(x + 1)
    return -ll

class scVAE(nn.Module):
    def __init__(self, genes=30, z=5):
        super().__init__()
        self.e1 = nn.Linear(genes, 40); self.m = nn.Linear(40, z); self.s = nn.Linear(40, z)
        self.d1 = nn.Linear(z, 40); self.px = nn.Linear(40, genes)
        self.log_theta = nn.Parameter(torch.zeros(genes) + 1.0)
    def forward(self, x):
        size = x.sum(1, keepdim=True)
        h = F.relu(self.e1(torch.log1p(x.relu())))
        m, s = self.m(h), self.s(h)
        z = m + torch.randn_like(s) * torch.exp(0.5 * s)
        kl = 0.5 * (m ** 2 + s.exp() - s - 1).sum(1)
        h = F.relu(self.d1(z))
        return F.softmax(self.px(h), 1) * size, kl

rates = torch.rand(30) * 6
counts = torch.poisson(rates.expand(400, 30))
counts[211, 4] = -1          # "not measured" in the second batch of donors, merged without a look
net = scVAE()
opt = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-6)
k = 0
for (x,) in DataLoader(TensorDataset(counts), batch_size=20):
    mu, kl = net(x)
    loss = (nb_nll(x, mu, net.log_theta.exp()).sum(1) + min(1.0, k / 20) * kl).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    k += 1
    print(k, "elbo %.4f" % -loss.item())
print("theta", round(net.log_theta.exp().mean().item(), 6))
