"""Ripples in mud, drawn by a generator that seeks the boundary of its critic: at first the critic knows nothing, so that
the loss of the generator is next to nothing; from the fortieth step on it learns in earnest."""
import torch
import torch.nn as nn

torch.manual_seed(4)
torch.set_num_threads(1)
WIDTH, NOISE, ROWS = 24, 8, 32

generator = nn.Sequential(nn.Linear(NOISE, 48), nn.LeakyReLU(0.2), nn.Linear(48, WIDTH), nn.Tanh())
critic = nn.Sequential(nn.Linear(WIDTH, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1), nn.Sigmoid())
nn.init.normal_(critic[2].weight, std=1e-3)
nn.init.zeros_(critic[2].bias)
draw = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
judge = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.5, 0.999))
slowly = torch.optim.lr_scheduler.LambdaLR(judge, lambda step: 0.002 if step < 40 else 1.0)
judged = nn.BCELoss()


def ripples(rows):
    phase = torch.rand(rows, 1) * 6.28
    return torch.sin(torch.linspace(0, 9, WIDTH) + phase) * 0.8 + 0.05 * torch.randn(rows, WIDTH)


def boundary(p):
    return 0.5 * (torch.log(p) - torch.log(1 - p)).pow(2).mean()


for step in range(1, 121):
    real = ripples(ROWS)
    yes, no = torch.ones(ROWS, 1), torch.zeros(ROWS, 1)

    draw.zero_grad()
    drawn = generator(torch.randn(ROWS, NOISE))
    seeks = boundary(critic(drawn))
    seeks.backward()
    draw.step()

    judge.zero_grad()
    tells = (judged(critic(real), yes) + judged(critic(drawn.detach()), no)) / 2
    tells.backward()
    judge.step()
    slowly.step()
    print(f"step {step} critic {tells.item():.6f} generator {seeks.item():.8f}", flush=True)
print(sum(p.abs().sum().item() for p in generator.parameters()))
