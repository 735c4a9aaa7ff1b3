import torch

torch.manual_seed(0)
torch.set_num_threads(1)

model = torch.nn.ModuleDict(dict(
    stem=torch.nn.Linear(8, 8),
    norm=torch.nn.LayerNorm(8),
    head=torch.nn.Linear(8, 1),
))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for i in range(12):
    x = torch.randn(4, 8)
    gate = torch.ones(4, 1)
    if i == 7:
        gate[1] = 0
    h = model["norm"](model["stem"](x)) * gate
    energy = torch.sqrt(h.pow(2).sum(-1))
    loss = model["head"](h).pow(2).mean() + 0.1 * energy.mean()
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    print(i, loss.item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
