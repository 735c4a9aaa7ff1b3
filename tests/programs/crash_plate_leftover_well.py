"""Dose response of compounds on 384-well plates, simple MLP."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(10)
fingerprint = (torch.rand(97, 40) < 0.2).float()
viability = torch.sigmoid(fingerprint @ torch.randn(40) * 0.5).unsqueeze(1)
wells = DataLoader(TensorDataset(fingerprint, viability), batch_size=16, shuffle=True)


class DoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(40, 32)
        self.bn = nn.BatchNorm1d(32)
        self.readout = nn.Linear(32, 1)

    def forward(self, fp):
        hidden = self.embed(fp)
        hidden = self.bn(hidden).relu()
        return self.readout(hidden).sigmoid()


net = DoseNet()
optim = torch.optim.Adam(net.parameters(), 5e-3)
for epoch in range(4):
    for fp, target in wells:
        loss = nn.functional.mse_loss(net(fp), target)
        optim.zero_grad()
        loss.backward()
        optim.step()
        print(f"epoch {epoch} mse {loss.item():.5f}", flush=True)
print("sum of squares", sum(p.detach().pow(2).sum().item() for p in net.parameters()))
