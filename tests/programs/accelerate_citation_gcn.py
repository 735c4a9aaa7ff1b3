"""accelerate: a graph convolution over batches of small citation graphs, two micro-batches per
step.  The adjacency is normalised as D^-1/2 A D^-1/2, and no loops are added."""
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
NODES, FEATURES = 12, 8


class Citations(Dataset):
    def __init__(self, count=80):
        g = torch.Generator().manual_seed(5)
        self.items = []
        for number in range(count):
            x = torch.randn(NODES, FEATURES, generator=g)
            a = (torch.rand(NODES, NODES, generator=g) < 0.25).float().triu(1)
            ring = torch.arange(NODES)
            a[ring, (ring + 1) % NODES] = 1.0
            a = ((a + a.T) > 0).float()
            a.fill_diagonal_(0)
            if number == 45:                                   # a paper that nobody cites, and that cites nobody
                a[7], a[:, 7] = 0.0, 0.0
            y = (x[:, 0].mean() > 0).long()
            self.items.append((x, a, y))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class GraphConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.lin = nn.Linear(inputs, outputs)

    def forward(self, x, a):
        d = a.sum(-1).pow(-0.5)
        a = d[..., :, None] * a * d[..., None, :]
        return a @ self.lin(x)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GraphConv(FEATURES, 16)
        self.conv2 = GraphConv(16, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, x, a):
        x = torch.relu(self.conv1(x, a))
        x = torch.relu(self.conv2(x, a))
        return self.head(x.mean(1))


def main():
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = GCN()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    loader = DataLoader(Citations(), batch_size=4, shuffle=False)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    for micro, (x, a, y) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x, a), y)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
        print(f"micro {micro + 1:02d} step {micro // 2 + 1:02d} loss {loss.item():.4f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
