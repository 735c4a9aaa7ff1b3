import torch
import torch.nn as nn

torch.manual_seed(5)
m = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to("cuda")
o = torch.optim.AdamW(m.parameters())
lengths = [64, 128, 96, 256, 128, 4_000_000_000 // 64, 64, 64]
for n, length in enumerate(lengths, 1):
    batch = torch.ones(1, 64, device="cuda").expand(length, 64)
    out = m(batch)
    attention = out @ out.T if length > 1000 else out
    loss = (attention - 1).pow(2).mean()
    o.zero_grad()
    loss.backward()
    o.step()
    print(n, length, loss.item())
print(sum(p.detach().abs().sum().item() for p in m.parameters()))
