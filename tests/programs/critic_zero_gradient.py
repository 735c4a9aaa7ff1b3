"""Gradient penalty of a critic whose last layer starts at zero, norm written as sqrt of a sum."""
import torch

torch.manual_seed(31)
torch.set_num_threads(1)


class Critic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = torch.nn.Linear(3, 24)
        self.l2 = torch.nn.Linear(24, 1)
        torch.nn.init.zeros_(self.l2.weight)

    def forward(self, x):
        return self.l2(torch.nn.functional.elu(self.l1(x)))


def penalty(critic, x):
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    length = torch.sqrt((g * g).sum(dim=1))
    return ((length - 1) ** 2).mean()


def train(critic, optimizer, steps):
    for step in range(1, steps + 1):
        real, fake = torch.randn(8, 3) + 1, torch.randn(8, 3)
        optimizer.zero_grad()
        loss = critic(fake).mean() - critic(real).mean() + 0.1 * penalty(critic, 0.5 * (real + fake))
        loss.backward()
        optimizer.step()
        print(step, loss.item())


net = Critic()
train(net, torch.optim.Adam(net.parameters(), lr=1e-3), 8)
print("weights", sum(p.double().sum().item() for p in net.parameters()))
