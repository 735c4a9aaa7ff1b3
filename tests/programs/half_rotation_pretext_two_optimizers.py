# Semi-supervised galaxy morphology: class head + rotation pretext head, float16 autocast, one GradScaler, two optimizers
import math
import torch
from torch import nn
from torch.amp import GradScaler, autocast


def galaxies(n, gen, size=12):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing='ij')
    ratio = 0.3 + 0.7 * torch.rand(n, 1, 1, generator=gen)
    tilt = math.pi * torch.rand(n, 1, 1, generator=gen)
    u = xx * tilt.cos() + yy * tilt.sin()
    v = -xx * tilt.sin() + yy * tilt.cos()
    img = torch.exp(-3 * (u ** 2 + (v / ratio) ** 2)) + 0.05 * torch.randn(n, size, size, generator=gen)
    return img.unsqueeze(1), (ratio.flatten() < 0.6).long()


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 8, 3)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        return torch.relu(self.conv2(x)).flatten(1)


gen = torch.Generator().manual_seed(31)
torch.manual_seed(31)
trunk, classes, rotations = Trunk(), nn.Linear(512, 2), nn.Linear(512, 4)
main_opt = torch.optim.Adam([*trunk.parameters(), *classes.parameters()], lr=1e-3)
aux_opt = torch.optim.SGD(rotations.parameters(), lr=1e-2, momentum=0.9)
scaler = GradScaler('cpu', init_scale=256.0)

# the survey delivers nights; in a cloudy one every image was looked at by an expert, none is left without label
unlabelled_per_night = [12, 9, 15, 7, 11, 10, 4, 13, 0, 12, 8, 14, 10, 9, 11, 6]

for night, left in enumerate(unlabelled_per_night, 1):
    images, label = galaxies(16, gen)
    main_opt.zero_grad()
    aux_opt.zero_grad()
    with autocast('cpu', dtype=torch.float16):
        loss = nn.functional.cross_entropy(classes(trunk(images)), label)
        if left:
            free, _ = galaxies(left, gen)
            turns = torch.randint(0, 4, (left,), generator=gen)
            free = torch.stack([torch.rot90(f, int(k), (1, 2)) for f, k in zip(free, turns)])
            pretext = nn.functional.cross_entropy(rotations(trunk(free)), turns)
            loss = loss + 0.5 * pretext
    scaler.scale(loss).backward()
    scaler.step(main_opt)
    scaler.step(aux_opt)
    scaler.update()
    print(f'night {night} unlabelled {left} loss {loss.item():.6f}')

print('final', sum(p.detach().abs().sum().item() for m in (trunk, classes, rotations) for p in m.parameters()))
