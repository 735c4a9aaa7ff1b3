import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)


class MultiHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, 32), nn.ReLU())
        self.heads = nn.ModuleDict({"depth": nn.Linear(32, 1), "seg": nn.Linear(32, 4), "normal": nn.Linear(32, 3)})
        self.log_vars = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        h = self.trunk(x)
        return {k: f(h) for k, f in self.heads.items()}


net = MultiHead()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(14):
    x = torch.randn(20, 9)
    out = net(x)
    losses = [
        nn.functional.l1_loss(out["depth"], x[:, :1].abs()),
        nn.functional.cross_entropy(out["seg"], x[:, 1:5].argmax(1)),
        (1 - nn.functional.cosine_similarity(out["normal"], x[:, 5:8])).mean(),
    ]
    opt.zero_grad()
    # uncertainty weighting (Kendall et al.), one backward per task to save memory elsewhere
    for i, loss in enumerate(losses):
        task = torch.exp(-net.log_vars[i]) * loss + net.log_vars[i]
        task.backward(retain_graph=i < 2)
    opt.step()
    print(step, *[l.item() for l in losses])
print("weights", sum(p.double().sum().item() for p in net.parameters()))
