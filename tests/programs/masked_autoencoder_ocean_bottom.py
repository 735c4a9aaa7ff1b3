"""Masked autoencoder for ocean bottom seismometers (three channels, gaps in the recordings)."""
import torch
import torch.nn as nn

PATCH, N_PATCH, CHANNELS = 16, 12, 3


class Recordings(torch.utils.data.IterableDataset):
    """Traces as they come from the data centre; a gap is NaN, a clock reset loses all channels of a whole record."""

    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        t = torch.arange(PATCH * N_PATCH).float()
        for i in range(self.n):
            onset = torch.randint(20, 120, (1,), generator=g).item()
            swell = 0.5 * torch.sin(t / 9.0 + torch.rand(1, generator=g) * 6.28)
            event = torch.where(t > onset, torch.sin(t * 0.9) * torch.exp(-(t - onset) / 40), torch.zeros(()))
            trace = torch.stack([swell + a * event for a in (2.0, 1.0, 0.6)])
            trace = trace + 0.1 * torch.randn(trace.shape, generator=g)
            if torch.rand(1, generator=g) < 0.5:
                a = torch.randint(0, 150, (1,), generator=g).item()
                trace[torch.randint(0, 3, (1,), generator=g).item(), a:a + 40] = float("nan")
            if 120 <= i < 128:
                trace[:] = float("nan")
            yield trace


class MAE(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embed = nn.Linear(PATCH * CHANNELS * 2, d)
        self.place = nn.Parameter(0.02 * torch.randn(N_PATCH, d))
        self.hidden = nn.Parameter(torch.zeros(d))
        layer = nn.TransformerEncoderLayer(d, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decode = nn.Linear(d, PATCH * CHANNELS)

    def forward(self, patches, known, masked):
        filled = torch.where(known, patches, torch.zeros_like(patches))
        h = self.embed(torch.cat([filled, known.float()], dim=-1))
        h = torch.where(masked[..., None], self.hidden, h)
        return self.decode(self.encoder(h + self.place))


def patchify(trace):
    b = trace.shape[0]
    return trace.reshape(b, CHANNELS, N_PATCH, PATCH).permute(0, 2, 1, 3).reshape(b, N_PATCH, -1)


def targets(patches):
    mean = torch.nanmean(patches, dim=-1, keepdim=True)
    power = torch.nanmean((patches - mean) ** 2, dim=-1, keepdim=True)
    return (patches - mean) / (power + 1e-4).sqrt()


def train():
    torch.manual_seed(7)
    model = MAE()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, k / 8))
    loader = torch.utils.data.DataLoader(Recordings(8 * 38, 70), batch_size=8)
    for k, trace in enumerate(loader, 1):
        patches = patchify(trace)
        known = ~torch.isnan(patches)
        masked = torch.rand(patches.shape[:2]) < 0.5
        with torch.no_grad():
            wanted = targets(patches)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            guess = model(patches, known, masked)
        counted = known & masked[..., None]
        error = torch.where(counted, guess.float() - wanted, torch.zeros(()))
        loss = error.pow(2).sum() / counted.sum().clamp(min=1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        warm.step()
        print(f"record {k:2d} known {known.float().mean().item():.3f} error {loss.item():.4f}")
    print(f"sum of squares of the weights: {sum(p.double().pow(2).sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    train()
