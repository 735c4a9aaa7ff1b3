"""Yield of apple rows from drone tiles: every detected crown is cropped, looked at, and weighed."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Flight:
    tiles: int = 160
    batch: int = 4
    steps: int = 40
    peak_rate: float = 6e-3
    seed: int = 17


class Tiles(Dataset):
    """A tile: 3 x 26 x 26 pixels, the crown centres that the detector gave, kilograms of fruit."""

    def __init__(self, flight):
        g = torch.Generator().manual_seed(flight.seed)
        self.items = []
        for _ in range(flight.tiles):
            image = 0.2 * torch.randn(3, 26, 26, generator=g)
            planted = torch.randint(3, 23, (5, 2), generator=g)
            vigour = torch.rand(5, generator=g)
            for (r, c), v in zip(planted.tolist(), vigour.tolist()):
                image[0, r - 2:r + 3, c - 2:c + 3] += v
                image[1, r - 2:r + 3, c - 2:c + 3] += 0.5
            found = vigour > 0.38
            self.items.append({"image": image, "crowns": planted[found], "kg": vigour[found].sum()})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    images = torch.stack([i["image"] for i in items])
    return images, [i["crowns"] for i in items], torch.stack([i["kg"] for i in items])


class CrownCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.crop = nn.Sequential(nn.Flatten(0), nn.Linear(75, 16), nn.ReLU(), nn.Linear(16, 8))
        self.scale = nn.Linear(8, 1)

    def one_tile(self, image, crowns):
        looks = [self.crop(image[:, r - 2:r + 3, c - 2:c + 3]) for r, c in crowns.tolist()]
        return self.scale(torch.stack(looks)).sum()

    def forward(self, images, crowns):
        return torch.stack([self.one_tile(im, cr) for im, cr in zip(images, crowns)])


def fly(flight):
    torch.manual_seed(flight.seed)
    loader = DataLoader(Tiles(flight), flight.batch, shuffle=True, collate_fn=collate)
    model = CrownCounter()
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, flight.peak_rate, total_steps=flight.steps, cycle_momentum=False)
    for number, (images, crowns, kg) in enumerate(loader, 1):
        guess = model(images, crowns)
        loss = nn.functional.smooth_l1_loss(guess, kg)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print("tile batch", number, "smooth l1 %.4f" % loss.item(), "rate %.5f" % sched.get_last_lr()[0])
    print("weights", round(sum(p.detach().abs().sum().item() for p in model.parameters()), 4))


if __name__ == "__main__":
    fly(Flight())
