"""Masked autoencoder for small galaxy cutouts (survey frames, sky already subtracted)."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, PATCH, KEEP = 16, 4, 6
SOFTENING = 2.0


class Cutouts(Dataset):
    """Exponential discs on a noisy sky; some frames were crossed by a satellite, whose trail was taken out."""

    def __init__(self, count):
        self.count = count
        self.trails = {41: 35.0, 133: 60.0, 307: 26000.0, 402: 22.0}
        y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        self.y, self.x = y - 7.5, x - 7.5

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(9000 + i)
        angle, axis, scale, bright = torch.rand(4, generator=g)
        angle, axis = 3.1416 * angle, 0.4 + 0.6 * axis
        u = self.x * angle.cos() + self.y * angle.sin()
        v = (self.y * angle.cos() - self.x * angle.sin()) / axis
        flux = (20 + 60 * bright) * torch.exp(-(u * u + v * v).sqrt() / (1.5 + 2 * scale))
        flux = flux + torch.randn(SIDE, SIDE, generator=g)
        if i in self.trails:
            flux[int(angle * 4), :] -= self.trails[i]
        z = flux / SOFTENING
        return torch.log(z + torch.sqrt(z * z + 1))


class MaskedAutoencoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        n = (SIDE // PATCH) ** 2
        self.embed = nn.Linear(PATCH * PATCH, width)
        self.place = nn.Parameter(0.02 * torch.randn(n, width))
        self.hole = nn.Parameter(torch.zeros(width))
        self.encoder = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.paint = nn.Linear(width, PATCH * PATCH)

    def forward(self, images):
        patches = images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).flatten(1, 2)
        b, n, _ = patches.shape
        order = torch.rand(b, n).argsort(1)
        seen, hidden = order[:, :KEEP], order[:, KEEP:]
        tokens = self.embed(patches) + self.place
        width = tokens.shape[-1]
        pick = lambda t, idx: t.gather(1, idx[..., None].expand(-1, -1, t.shape[-1]))
        code = self.encoder(pick(tokens, seen))
        canvas = (self.hole + self.place).expand(b, n, width)
        canvas = canvas.scatter(1, seen[..., None].expand(-1, -1, width), code)
        guess = self.paint(self.decoder(canvas))
        return (pick(guess, hidden) - pick(patches, hidden)).pow(2).mean()


def pretrain():
    torch.manual_seed(3)
    loader = DataLoader(Cutouts(480), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(22))
    model = MaskedAutoencoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=len(loader))
    for number, images in enumerate(loader, 1):
        loss = model(images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        print(f"batch {number:2d}/{len(loader)}  reconstruction {loss.item():.4f}")
    print("sum of squares of all weights:", round(sum(p.detach().pow(2).sum().item() for p in model.parameters()), 3))


if __name__ == "__main__":
    pretrain()
