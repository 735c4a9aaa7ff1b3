import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class StaffReader(nn.Module):
    """Reads the pitch of the one note in a bar."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.pitch = nn.Linear(8 * 8 * 6, 8)

    def features(self, bar):
        return F.max_pool2d(torch.relu(self.conv(bar)), (1, 2)).flatten(1)

    def forward(self, bar):
        code = self.features(bar)
        return self.pitch(code), code


class PedalFinder(nn.Module):
    """Where under the staff does the pedal mark stand (for bars that have one)?"""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8 * 8 * 6, 32)
        self.where = nn.Linear(32, 12)

    def forward(self, code):
        return self.where(F.silu(self.mix(code)))


def engrave(generator):
    """Forty pages of ten bars, page after page: piano pieces, and two old ones for the harpsichord."""
    bars, pitches, places, marked = [], [], [], []
    for page in range(40):
        for _ in range(10):
            bar = 0.1 * torch.rand(1, 8, 12, generator=generator)
            pitch = int(torch.randint(8, (1,), generator=generator))
            column = int(torch.randint(12, (1,), generator=generator))
            bar[0, pitch, 3:5] += 1.0
            has = page not in (17, 30) and float(torch.rand(1, generator=generator)) < 0.7
            if has:
                bar[0, 7, column] += 0.8
            bars.append(bar), pitches.append(pitch), places.append(column), marked.append(float(has))
    return TensorDataset(torch.stack(bars), torch.tensor(pitches), torch.tensor(places), torch.tensor(marked))


def grad_size(model):
    return torch.stack([p.grad.norm() for p in model.parameters()]).norm()


def train():
    torch.manual_seed(2)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    reader, finder = StaffReader(), PedalFinder()
    opt_r = torch.optim.AdamW(reader.parameters(), lr=4e-3)
    opt_f = torch.optim.SGD(finder.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(engrave(torch.Generator().manual_seed(6)), batch_size=10)
    reader, finder, opt_r, opt_f, loader = accelerator.prepare(reader, finder, opt_r, opt_f, loader)
    for page, (bar, pitch, place, marked) in enumerate(loader, 1):
        with accelerator.autocast():
            logits, code = reader(bar)
            spot = finder(code)
        loss_r = F.cross_entropy(logits.float(), pitch)
        loss_f = (F.cross_entropy(spot.float(), place, reduction="none") * marked).sum() / marked.sum().clamp(min=1)
        opt_r.zero_grad()
        opt_f.zero_grad()
        accelerator.backward(loss_r + 0.3 * loss_f)
        # both models are to move at the same pace
        pace = grad_size(reader) / grad_size(finder)
        for p in finder.parameters():
            p.grad.mul_(pace)
        opt_r.step()
        opt_f.step()
        accelerator.print(f"page {page:2d} | pitch {loss_r.item():.4f} | pedal {loss_f.item():.4f}")
    weights = list(reader.parameters()) + list(finder.parameters())
    accelerator.print("absolute sum of both models", f"{sum(w.detach().abs().sum().item() for w in weights):.3f}")


if __name__ == "__main__":
    train()
