"""Click prediction with bucketised prices: a bucket of the logarithm of the price has an embedding row."""
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(3)
torch.set_num_threads(1)

BUCKETS, SHOPS = 12, 6


class Clicks(Dataset):
    def __init__(self, n=300):
        g = torch.Generator().manual_seed(7)
        self.price = 1 + 900 * torch.rand(n, generator=g)
        self.price[211] = 5200.0
        self.shop = torch.randint(0, SHOPS, (n,), generator=g)
        self.click = (torch.rand(n, generator=g) < 0.3).float()

    def __len__(self):
        return len(self.price)

    def __getitem__(self, i):
        bucket = int(math.log2(float(self.price[i])))
        return bucket, self.shop[i], self.click[i]


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.price = nn.Embedding(BUCKETS, 8)
        self.shop = nn.Embedding(SHOPS, 8)
        self.score = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, bucket, shop):
        features = [self.price(bucket), self.shop(shop)]
        return self.score(torch.cat(features, dim=-1)).squeeze(-1)


def fit(model, loader, epochs):
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    step = 0
    for _ in range(epochs):
        for bucket, shop, click in loader:
            step += 1
            logits = model(bucket, shop)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, click)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.4f}")


fit(Wide(), DataLoader(Clicks(), batch_size=20), epochs=2)
