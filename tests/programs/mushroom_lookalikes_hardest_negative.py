# Field guide embeddings: a specimen must be closer to its own species than to the likest one of another.
import torch
import torch.nn as nn

SPECIES = ["amanita phalloides", "agaricus campestris", "galerina marginata", "kuehneromyces mutabilis",
           "cantharellus cibarius", "hygrophoropsis aurantiaca"]
FEATURES = 14   # cap width, stipe, gill spacing, spore print, smell ...


def forays(total, gen):
    """Basket by basket, as the society's members brought them in during one autumn."""
    proto = torch.randn(len(SPECIES), FEATURES, generator=gen)
    for day in range(total):
        if day == 18:   # a wet October morning under the spruces: chanterelles, nothing but chanterelles
            label = torch.full((10,), 4)
        else:
            label = torch.randint(0, len(SPECIES), (10,), generator=gen)
        yield proto[label] + 0.8 * torch.randn(10, FEATURES, generator=gen), label


class Guide(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 32), nn.LeakyReLU(), nn.Linear(32, 8))

    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=1)


def triplet(emb, label, margin=0.3):
    dist = 2 - 2 * emb @ emb.T
    same = label[:, None] == label[None, :]
    terms = []
    for i in range(len(label)):
        furthest = dist[i][same[i]].max()
        nearest = dist[i][~same[i]].min()
        terms.append(torch.relu(furthest - nearest + margin))
    return torch.stack(terms).mean()


def train():
    torch.manual_seed(77)
    gen = torch.Generator().manual_seed(78)
    guide = Guide()
    optim = torch.optim.RMSprop(guide.parameters(), lr=2e-3)
    for basket, (x, label) in enumerate(forays(30, gen), 1):
        loss = triplet(guide(x), label)
        optim.zero_grad()
        loss.backward()
        optim.step()
        print(f"basket {basket}: triplet loss {loss.item():.4f}")
    return guide


if __name__ == "__main__":
    guide = train()
    print("weights, absolute:", sum(p.abs().sum().item() for p in guide.parameters()))
