import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class DartDrafter(nn.Module):
    """From body measurements (cm): length of the dart legs, how much of the difference
    between hip and waist the dart takes up, and from both the angle at its point."""

    def __init__(self, width=20):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.legs = nn.Linear(width, 1)
        self.intake = nn.Linear(width, 1)

    def forward(self, body):
        mean = body.new_tensor([90.0, 72.0, 96.0, 42.0])
        feats = self.trunk((body - mean) / 10.0)
        legs = 11.0 + nn.functional.softplus(self.legs(feats).squeeze(-1))
        share = torch.sigmoid(self.intake(feats).squeeze(-1)) * 0.3
        opening = share * (body[:, 2] - body[:, 1]).clamp(min=0.0)
        angle = dart_angle(legs, opening)
        return legs, angle


def dart_angle(legs, opening):
    # law of cosines, both legs equal
    cosine = (2 * legs ** 2 - opening ** 2) / (2 * legs ** 2)
    return torch.rad2deg(torch.acos(cosine))


def drafting_book(n, seed):
    gen = torch.Generator().manual_seed(seed)
    bust = 90 + 7 * torch.randn(n, generator=gen)
    waist = bust - 18 + 3 * torch.randn(n, generator=gen)
    hip = torch.maximum(bust + 6 + 3 * torch.randn(n, generator=gen), waist + 6)
    back = 42 + 2 * torch.randn(n, generator=gen)
    waist[171] = hip[171] + 1.5                     # drafted for a sack dress
    waist[309] = hip[309]
    body = torch.stack([bust, waist, hip, back], 1)
    legs = 12.5 + 0.08 * (back - 42) + 0.03 * (bust - 90)
    angle = torch.rad2deg(2 * torch.asin(0.11 * (hip - waist).clamp(min=0) / (2 * legs)))
    return TensorDataset(body, legs, angle)


class Trainer:
    def __init__(self, model, micro=4):
        self.model = model
        self.micro = micro
        self.opt = torch.optim.RMSprop(model.parameters(), lr=2e-3, alpha=0.9)
        self.updates = 0

    def loss(self, body, legs, angle):
        legs_hat, angle_hat = self.model(body)
        return nn.functional.smooth_l1_loss(angle_hat, angle) + nn.functional.mse_loss(legs_hat, legs)

    def fit(self, data):
        running = 0.0
        for i, sheet in enumerate(DataLoader(data, batch_size=3), start=1):
            part = self.loss(*sheet) / self.micro
            part.backward()
            running += part.item()
            if i % self.micro == 0:
                self.opt.step()
                self.opt.zero_grad()
                self.updates += 1
                print(f"update {self.updates}: loss {running:.5f}")
                running = 0.0


torch.manual_seed(62)
trainer = Trainer(DartDrafter())
trainer.fit(drafting_book(12 * 34, seed=8))
size = sum((p.detach() ** 2).sum().item() for p in trainer.model.parameters())
print("squared size of the network:", round(size, 4))
