from collections import defaultdict

import torch


class Lookahead:
    """wraps another optimizer; every k steps the slow weights follow the fast ones"""

    def __init__(self, optimizer, k=4, alpha=0.5):
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.param_groups = optimizer.param_groups
        self.state = defaultdict(dict)
        self.counter = 0

    def __getattr__(self, name):
        return getattr(self.optimizer, name)

    def step(self):
        self.optimizer.step()
        self.counter += 1
        if self.counter % self.k == 0:
            with torch.no_grad():
                for group in self.param_groups:
                    for fast in group["params"]:
                        slow = self.state[fast].setdefault("slow", fast.detach().clone())
                        slow.add_(fast - slow, alpha=self.alpha)
                        fast.copy_(slow)


torch.manual_seed(21)
torch.set_num_threads(1)
net = torch.nn.GRU(4, 12, batch_first=True)
readout = torch.nn.Linear(12, 1)
everything = torch.nn.ModuleList([net, readout])
opt = Lookahead(torch.optim.RAdam(everything.parameters(), lr=1e-2))
for i in range(17):
    seq = torch.randn(8, 10, 4)
    out, _ = net(seq)
    loss = (readout(out[:, -1]).squeeze(1) - seq[..., 0].mean(1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
print("weights", sum(p.double().sum().item() for p in everything.parameters()))
