import torch
import torch.nn as nn

torch.manual_seed(44)
torch.set_num_threads(1)


class ClippedRNN(nn.Module):
    """hard-tanh cell with a straight-through gradient (the clamp is invisible to the backward)"""

    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.inp = nn.Linear(n_in, n_hidden)
        self.rec = nn.Linear(n_hidden, n_hidden, bias=False)
        self.out = nn.Linear(n_hidden, 1)
        nn.init.orthogonal_(self.rec.weight, gain=1.9)

    def forward(self, x):
        h = torch.zeros(x.shape[0], self.rec.in_features)
        for t in range(x.shape[1]):
            z = self.inp(x[:, t]) + self.rec(h)
            h = z + (z.clamp(-1, 1) - z).detach()
        return self.out(h).squeeze(-1)


net = ClippedRNN(3, 8)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step, length in enumerate([20, 30, 40, 50, 60, 160, 160, 160, 160], 1):
    x = torch.randn(4, length, 3)
    loss = (net(x) - x[:, 0].sum(-1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    print(step, length, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
