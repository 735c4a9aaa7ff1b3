"""Guests per night of mountain huts, from the huts around them: graph attention over the trails that are open."""
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

HUTS, DAYS = 22, 36


class Season(Dataset):
    """One item is a day: features of the huts, open trails, guests. Snow closes trails, more of them every week."""

    def __init__(self):
        g = torch.Generator().manual_seed(2962)
        place = torch.rand(HUTS, 2, generator=g)
        height = 1400 + 1600 * torch.rand(HUTS, generator=g)
        dist = torch.cdist(place, place)
        near = dist.argsort(1)[:, 1:5]
        trail = torch.zeros(HUTS, HUTS, dtype=torch.bool)
        trail[torch.arange(HUTS)[:, None], near] = True
        trail |= trail.T.clone()
        self.days = []
        beds = torch.randint(10, 60, (HUTS,), generator=g).float()
        for day in range(DAYS):
            snow_line = 2950 - 22 * day + 40 * torch.randn(1, generator=g)
            storm = torch.rand(HUTS, HUTS, generator=g) < 0.004 * day
            pass_height = torch.minimum(height[:, None], height[None])
            is_open = trail & ~(storm | storm.T) & (pass_height < snow_line + 500)
            sun = torch.rand(HUTS, generator=g)
            x = torch.stack([height / 1000 - 2, beds / 30 - 1, sun - 0.5, (height - snow_line) / 1000], -1)
            guests = beds / 60 * (0.3 + 0.7 * sun) * (1 + 0.1 * is_open.sum(1)) + 0.03 * torch.randn(HUTS, generator=g)
            self.days.append((x, is_open, guests))

    def __len__(self):
        return DAYS

    def __getitem__(self, day):
        return self.days[day]


class TrailAttention(nn.Module):
    def __init__(self, dim_in, dim, heads=4):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.lin = nn.Linear(dim_in, heads * dim)
        self.left = nn.Parameter(torch.randn(heads, dim) / dim ** 0.5)
        self.right = nn.Parameter(torch.randn(heads, dim) / dim ** 0.5)

    def forward(self, x, is_open):
        b, n, _ = x.shape
        h = self.lin(x).view(b, n, self.heads, self.dim)
        score = F.leaky_relu((h * self.left).sum(-1)[:, :, None] + (h * self.right).sum(-1)[:, None], 0.2)
        score = score.masked_fill(~is_open[..., None], float("-inf"))
        weight = torch.softmax(score, dim=2)
        return torch.einsum("bijh,bjhd->bihd", weight, h).reshape(b, n, -1)


class HutNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(4, 24)
        self.layers = nn.ModuleList([TrailAttention(24, 6), TrailAttention(24, 6)])
        self.norms = nn.ModuleList([nn.LayerNorm(24), nn.LayerNorm(24)])
        self.out = nn.Linear(24, 1)

    def forward(self, x, is_open):
        h = F.elu(self.enter(x))
        for layer, norm in zip(self.layers, self.norms):
            h = norm(h + F.elu(layer(h, is_open)))
        return self.out(h).squeeze(-1)


def main():
    torch.set_num_threads(1)
    set_seed(7)
    accelerator = Accelerator(cpu=True)
    model = HutNet()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    loader = DataLoader(Season(), batch_size=1, shuffle=False)      # in the order of the season
    model, opt, loader = accelerator.prepare(model, opt, loader)
    for day, (x, is_open, guests) in enumerate(loader, 1):
        loss = F.smooth_l1_loss(model(x, is_open), guests)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        opt.zero_grad()
        accelerator.print(f"day {day} trails {int(is_open.sum()) // 2} loss {loss.item():.7f}", flush=True)
    accelerator.print(sum(p.abs().sum().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
