import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Spirals(Dataset):
    def __init__(self, n=96, seed=0):
        rng = np.random.default_rng(seed)
        t = rng.uniform(0.5, 3.0, n)
        k = rng.integers(0, 2, n)
        xy = np.stack([t * np.cos(2 * t + np.pi * k), t * np.sin(2 * t + np.pi * k)], 1)
        self.x, self.y = xy.astype(np.float32), k

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"xy": torch.from_numpy(self.x[i]), "label": int(self.y[i])}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Spirals(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    net = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for epoch in range(3):
        running = 0.0
        for batch in loader:
            opt.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(batch["xy"]), batch["label"])
            loss.backward()
            opt.step()
            running += loss.item()
        print(f"epoch {epoch}: {running / len(loader)}")
    print("weights", sum(p.double().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
