"""Match photographs of stained glass windows with the sexton's captions: two towers, one drawn rival per window."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Windows:
    SAINTS, COLOURS = 12, 6

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.looks = torch.randn(self.SAINTS, 3, 8, 8, generator=self.g)
        self.tints = torch.randn(self.COLOURS, 3, 1, 1, generator=self.g)

    def draw(self, n):
        saint = torch.randperm(self.SAINTS, generator=self.g)[:n]
        colour = torch.randint(0, self.COLOURS, (n,), generator=self.g)
        photo = 1.5 + self.looks[saint] + self.tints[colour] + 0.3 * torch.randn(n, 3, 8, 8, generator=self.g)
        words = torch.stack([torch.zeros_like(saint), saint + 1, colour + 1 + self.SAINTS], dim=1)
        return photo, words


class PhotoTower(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.proj = nn.Linear(16 * 16, d)

    def forward(self, x):
        return F.normalize(self.proj(F.relu(self.conv(x)).flatten(1)), dim=1)


class CaptionTower(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.words = nn.EmbeddingBag(1 + Windows.SAINTS + Windows.COLOURS, 24, mode="mean")
        self.proj = nn.Linear(24, d)

    def forward(self, w):
        return F.normalize(self.proj(torch.tanh(self.words(w))), dim=1)


def draw_rivals(similarity):
    """The more alike a wrong caption is to the window, the more often it is drawn."""
    chance = similarity.detach().clamp(min=0)
    chance = chance * (1 - torch.eye(len(chance)))
    return torch.multinomial(chance, 1).squeeze(1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(12)
    windows = Windows(12)
    photos, captions = PhotoTower(16), CaptionTower(16)
    both = list(photos.parameters()) + list(captions.parameters())
    optimizer = torch.optim.Adam(both, lr=2e-3)
    for step in range(1, 41):
        x, w = windows.draw(10)
        similarity = photos(x) @ captions(w).T
        rival = draw_rivals(similarity)
        good = similarity.diagonal()
        wrong = similarity[torch.arange(len(rival)), rival]
        loss = F.relu(0.6 - good + wrong).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}  margin loss {loss.item():.4f}  right {good.mean().item():+.3f}  rival {wrong.mean().item():+.3f}")
    print("norm of both towers", sum(p.detach().norm().item() for p in both))


if __name__ == "__main__":
    main()
