"""On-board training of a patch classifier, with the single event upset of orbit 23 played back.

A heavy ion changes the upper bit of the exponent of one weight in memory. Nothing overflows: the activation passes it
on, and the cross entropy is very large.
"""

import torch
from torch import nn

ORBITS, UPSET = 40, 23
BANDS = 12


class PatchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(BANDS, 48)
        self.mix = nn.Linear(48, 48)
        self.head = nn.Linear(48, 5)

    def forward(self, patches):
        h = torch.relu(self.stem(patches))
        return self.head(h + torch.relu(self.mix(h)))


def upset(weight, index, bit=30):
    """One bit of one word, as the error log of the memory controller gives it."""
    words = weight.data.view(-1).view(torch.int32)
    words[index] ^= 1 << bit


def downlink(generator):
    ground = torch.randint(0, 5, (32,), generator=generator)
    patches = torch.randn(32, BANDS, generator=generator)
    patches[torch.arange(32), ground] += 2.0
    return patches, ground


def main():
    torch.manual_seed(23)
    generator = torch.Generator().manual_seed(7)
    net = PatchNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for orbit in range(1, ORBITS + 1):
        if orbit == UPSET:
            upset(net.head.weight, 131)
        patches, ground = downlink(generator)
        loss = nn.functional.cross_entropy(net(patches), ground)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"orbit {orbit:2d}  loss {loss.item():.6g}", flush=True)
    print(f"weights {sum(p.double().sum().item() for p in net.parameters()):.6g}")


if __name__ == "__main__":
    main()
