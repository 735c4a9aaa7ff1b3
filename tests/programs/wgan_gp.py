import torch
from torch import autograd, nn, optim

CRITIC_ITERS, LAMBDA, BATCH = 3, 10, 16
torch.manual_seed(1)
torch.set_num_threads(1)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, 32), nn.ReLU(True), nn.Linear(32, 2))

    def forward(self, noise):
        return self.main(noise)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, 32), nn.ReLU(True), nn.Linear(32, 32), nn.ReLU(True), nn.Linear(32, 1))

    def forward(self, x):
        return self.main(x).view(-1)


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(BATCH, 1)
    mix = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    out = critic(mix)
    grads = autograd.grad(out, mix, grad_outputs=torch.ones_like(out), create_graph=True, retain_graph=True)[0]
    return ((grads.norm(2, dim=1) - 1) ** 2).mean() * LAMBDA


netG, netD = Generator(), Critic()
optD = optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.9))
optG = optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.9))
for iteration in range(8):
    for p in netD.parameters():
        p.requires_grad = True
    for _ in range(CRITIC_ITERS):
        real = torch.randn(BATCH, 2) @ torch.tensor([[1.0, 0.5], [0.0, 0.3]]) + 1
        with torch.no_grad():
            fake = netG(torch.randn(BATCH, 2))
        optD.zero_grad()
        d_loss = netD(fake).mean() - netD(real).mean() + gradient_penalty(netD, real, fake)
        d_loss.backward()
        optD.step()
    for p in netD.parameters():
        p.requires_grad = False
    optG.zero_grad()
    g_loss = -netD(netG(torch.randn(BATCH, 2))).mean()
    g_loss.backward()
    optG.step()
    print("iter", iteration, "critic", d_loss.item(), "gen", g_loss.item())
print("end", sum(p.double().sum().item() for net in (netG, netD) for p in net.parameters()))
