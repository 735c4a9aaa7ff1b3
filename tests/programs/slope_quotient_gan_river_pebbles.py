# GAN of pebble outlines (radius at 16 angles); the critic's slope is penalised on chords
import torch, torch.nn as nn
from math import pi

torch.manual_seed(8)
ANGLES = torch.linspace(0, 2 * pi, 17)[:-1]
B = 16


def photograph(n):
    a = 1 + 0.35 * torch.rand(n, 1)
    phase = 2 * pi * torch.rand(n, 1)
    r = a + 0.25 * torch.rand(n, 1) * torch.cos(2 * ANGLES + phase) + 0.05 * torch.cos(3 * ANGLES - phase)
    return r + 0.01 * torch.randn(n, 16)


def album(pages=40):
    """pictures in the order in which they were taken"""
    shots = photograph(pages * B)
    shots[198] = shots[197]
    return shots.view(pages, B, 16)


def mlp(i, o, width=32):
    return nn.Sequential(nn.Linear(i, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
                         nn.Linear(width, o))


def switch(net, on):
    for p in net.parameters():
        p.requires_grad_(on)


def chord_penalty(critic, x):
    y = x.roll(1, 0)
    rise = (critic(x) - critic(y)).abs().squeeze(1)
    run = (x - y).norm(dim=1)
    slope = rise / run
    return torch.relu(slope - 1).square().mean()


gen, critic = mlp(6, 16), mlp(16, 1)
opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.9))
opt_c = torch.optim.Adam(critic.parameters(), lr=6e-3, betas=(0.5, 0.9))

for it, real in enumerate(album(), 1):
    switch(critic, True)
    with torch.no_grad():
        fake = gen(torch.randn(B, 6))
    w = critic(real).mean() - critic(fake).mean()
    gp = chord_penalty(critic, real) + chord_penalty(critic, fake)
    c_loss = -w + 5.0 * gp
    opt_c.zero_grad()
    c_loss.backward()
    opt_c.step()

    switch(critic, False)
    g_loss = -critic(gen(torch.randn(B, 6))).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    print("%2d  critic %8.4f  distance %8.4f  generator %8.4f" % (it, c_loss.item(), w.item(), g_loss.item()))

s = 0.0
for net in (gen, critic):
    for p in net.parameters():
        s += p.detach().pow(2).sum().item()
print("weights squared, both nets:", "%.6f" % s)
