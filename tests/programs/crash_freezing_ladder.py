"""Small image classifier whose blocks are frozen one by one, from the input upwards."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.norm = nn.GroupNorm(2, cout)

    def forward(self, x):
        return F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)


class Lichens(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = Block(3, 4)
        self.mid = Block(4, 8)
        self.top = nn.Linear(8 * 9, 3)

    def ladder(self):
        return [self.low, self.mid, self.top]

    def forward(self, x):
        return self.top(self.mid(self.low(x)).flatten(1))


class Ladder:
    """Freezes the next rung every `every` steps."""

    def __init__(self, model, every):
        self.rungs = iter(model.ladder())
        self.every = every

    def climb(self, step):
        if step % self.every == 0:
            rung = next(self.rungs, None)
            if rung is not None:
                rung.requires_grad_(False)


def photos(step):
    g = torch.Generator().manual_seed(1000 + step)
    kind = torch.randint(0, 3, (6,), generator=g)
    image = torch.rand(6, 3, 12, 12, generator=g) * 0.5
    image[torch.arange(6), kind] += 0.5
    return image, kind


def train_one(model, opt, step):
    image, kind = photos(step)
    loss = F.cross_entropy(model(image), kind)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.item()


torch.manual_seed(13)
model = Lichens()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
ladder = Ladder(model, every=4)
for step in range(1, 17):
    print("step", step, "loss", train_one(model, opt, step))
    ladder.climb(step)
print(float(sum(p.detach().sum() for p in model.parameters())))
