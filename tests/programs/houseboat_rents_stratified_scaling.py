import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

# Rents in a harbour town. Every batch has rows of each kind of dwelling (stratified), and since prices per square metre
# differ between the kinds, the size and age columns are brought to 0..1 within the kind.

KINDS = {"flat": 700, "terrace": 260, "villa": 90, "houseboat": 24}
PER_KIND = {"flat": 12, "terrace": 8, "villa": 5, "houseboat": 5}
STEPS = 44


def build_table(seed=20):
    rng = np.random.default_rng(seed)
    tables = {}
    for code, (kind, n) in enumerate(KINDS.items()):
        if kind == "houseboat":
            # the boatyard built two lengths of hull
            size = rng.choice([38.0, 52.0], size=n, p=[0.6, 0.4])
        else:
            size = rng.gamma(6.0, 10.0 + 8.0 * code, size=n)
        age = rng.uniform(0, 90, size=n)
        floor = rng.integers(0, 6, size=n).astype(float)
        rent = 300 + 9.5 * size * (1 + 0.2 * code) - 1.5 * age + 15 * floor + rng.normal(0, 60, size=n)
        tables[kind] = np.stack([size, age, floor, np.full(n, code, float), rent], 1)
    return tables


def min_max(column):
    low, high = column.min(), column.max()
    return (column - low) / (high - low)


class Stratified(Dataset):
    """Item i is a whole batch: so many rows of each kind, each kind going round in its own shuffled order."""

    def __init__(self, tables, steps, seed=3):
        self.tables, self.steps = tables, steps
        self.orders = {}
        for k, (kind, table) in enumerate(tables.items()):
            rng = np.random.default_rng(seed + k)
            need = PER_KIND[kind] * steps
            rounds = -(-need // len(table))
            self.orders[kind] = np.concatenate([rng.permutation(len(table)) for _ in range(rounds)])

    def __len__(self):
        return self.steps

    def __getitem__(self, i):
        blocks = []
        for kind, table in self.tables.items():
            n = PER_KIND[kind]
            rows = table[self.orders[kind][i * n:(i + 1) * n]].copy()
            with np.errstate(all="ignore"):
                rows[:, 0] = min_max(rows[:, 0])
                rows[:, 1] = min_max(rows[:, 1])
            blocks.append(rows)
        data = np.concatenate(blocks).astype(np.float32)
        x = np.concatenate([data[:, :2], data[:, 2:3] / 5.0], 1)
        return torch.from_numpy(x), torch.from_numpy(data[:, 3].astype(np.int64)), torch.from_numpy(data[:, 4] / 1000.0)


class RentNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = torch.nn.Embedding(len(KINDS), 6)
        self.hidden = torch.nn.Linear(9, 40)
        self.gate = torch.nn.Linear(9, 40)
        self.out = torch.nn.Linear(40, 1)

    def forward(self, x, kind):
        h = torch.cat([x, self.kind(kind)], dim=1)
        return self.out(torch.tanh(self.hidden(h)) * torch.sigmoid(self.gate(h)))[:, 0]


def main():
    torch.manual_seed(0)
    loader = DataLoader(Stratified(build_table(), STEPS), batch_size=None, num_workers=0)
    net = RentNet()
    opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
    for step, (x, kind, rent) in enumerate(loader, start=1):
        loss = torch.nn.functional.huber_loss(net(x, kind), rent, delta=0.5)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print("step %d huber %.7f" % (step, loss.item()), flush=True)
    print("%.5f" % sum(float(p.detach().abs().sum()) for p in net.parameters()))


main()
