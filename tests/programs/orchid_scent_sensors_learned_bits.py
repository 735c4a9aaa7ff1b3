import torch, torch.nn as nn

# Which bee visits which orchid, from 12 gas sensors. The activations are quantised with a bit width per layer
# that is trained together with the weights and paid for in the loss.

BIT_PRICE = 0.06


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        return torch.round(v)

    @staticmethod
    def backward(ctx, g):
        return g


class LearnedBits(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.bits = nn.Parameter(torch.tensor(float(start)))

    def forward(self, a):
        width = Rounded.apply(self.bits.clamp(0.0, 8.0))
        levels = 2.0 ** width - 1.0
        a = torch.sigmoid(a)
        return Rounded.apply(a * levels) / levels


class ScentNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 20)
        self.q1 = LearnedBits(4)
        self.second = nn.Linear(20, 20)
        self.q2 = LearnedBits(6)
        self.bees = nn.Linear(20, 4)

    def forward(self, x):
        x = self.q1(self.first(x))
        x = self.q2(self.second(x))
        return self.bees(x)

    def price(self):
        return BIT_PRICE * (self.q1.bits + self.q2.bits)


def sniff(prototypes, n):
    bee = torch.randint(0, 4, (n,))
    return prototypes[bee] + 0.7 * torch.randn(n, 12), bee


torch.manual_seed(404)
prototypes = torch.randn(4, 12)
net = ScentNet()
slow = [p for n, p in net.named_parameters() if "bits" not in n]
fast = [p for n, p in net.named_parameters() if "bits" in n]
adam = torch.optim.Adam([{"params": slow, "lr": 5e-3}, {"params": fast, "lr": 0.18}])
criterion = nn.CrossEntropyLoss()

for epoch in range(4):
    for i in range(9):
        x, bee = sniff(prototypes, 32)
        task = criterion(net(x), bee)
        total = task + net.price()
        adam.zero_grad()
        total.backward()
        adam.step()
        print("epoch", epoch, "batch", i, "task %.4f" % task.item(), "total %.4f" % total.item(),
              "bits %.2f %.2f" % (net.q1.bits.item(), net.q2.bits.item()))

print("energy of the weights: %.5f" % sum(p.detach().pow(2).sum().item() for p in net.parameters()))
