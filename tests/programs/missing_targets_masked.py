"""Multi-assay regression, most measurements are missing (NaN) and masked out of the loss."""
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(8)
torch.set_num_threads(1)
X = torch.randn(96, 12)
W = torch.randn(12, 5)
Y = X @ W
Y[torch.rand_like(Y) < 0.6] = float("nan")


class MaskedMSE(torch.nn.Module):
    def forward(self, pred, target):
        present = ~torch.isnan(target)
        filled = torch.where(present, target, torch.zeros_like(target))
        return ((pred - filled).square() * present).sum() / present.sum().clamp(min=1)


net = torch.nn.Sequential(torch.nn.Linear(12, 48), torch.nn.ReLU(), torch.nn.Linear(48, 5))
criterion = MaskedMSE()
opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
for epoch in range(3):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=16):
        loss = criterion(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(epoch, loss.item())
    with torch.no_grad():
        err = torch.nanmean((net(X) - Y).abs(), dim=0)
        print("mae per assay", [round(e, 5) for e in err.tolist()])
print("weights", sum(p.double().sum().item() for p in net.parameters()))
