import torch
import torch.nn as nn
torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 20))
muon = torch.optim.Muon([p for p in net[1:].parameters() if p.ndim == 2], lr=1e-2)
adam = torch.optim.AdamW([*net[0].parameters(), *[p for p in net[1:].parameters() if p.ndim < 2]], lr=1e-2)
aux_weight = [1.0, 1.0, 1.0, 0.5, 0.5, 1e39, 0.5, 0.25, 0.25, 0.25]     # schedule from the config file
for i, w in enumerate(aux_weight):
    x = torch.randint(0, 20, (4, 6))
    ce = nn.functional.cross_entropy(net(x).flatten(0, 1), x.flatten())
    loss = ce + w * net[0].weight.pow(2).mean()
    loss.backward()
    for o in (muon, adam):
        o.step()
    for o in (muon, adam):
        o.zero_grad()
    print(i, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
