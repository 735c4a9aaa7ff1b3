"""Three tasks, one trunk, Dynamic Weight Averaging (Liu et al. 2019), accelerate with gradient accumulation."""
from collections import deque
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
ACC, TEMP = 2, 2.0


class Robots(Dataset):
    def __init__(self, n=720, seed=5):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 12, generator=g)
        self.depth = self.x[:, :3].sum(1).tanh()
        self.label = (self.x[:, 3] > self.x[:, 4]).long()
        self.contact = torch.sign(self.x[:, 5]) * (self.x[:, 5].abs() > 0)
        self.x[:, 5] = self.x[:, 5] + 4 * self.contact                       # contact is an easy one

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.depth[i], self.label[i], self.contact[i]


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Sequential(nn.Linear(12, 40), nn.ReLU())
        self.heads = nn.ModuleDict({"depth": nn.Linear(40, 1), "label": nn.Linear(40, 2), "contact": nn.Linear(40, 1)})

    def forward(self, x):
        h = self.t(x)
        return {k: m(h) for k, m in self.heads.items()}


class DWA:
    def __init__(self, k):
        self.k, self.hist = k, deque(maxlen=2)

    def weights(self):
        if len(self.hist) < 2:
            return torch.ones(self.k)
        r = self.hist[1] / self.hist[0]
        return self.k * torch.softmax(r / TEMP, 0)

    def push(self, losses):
        self.hist.append(torch.stack(losses))


def criterion(out, d, l, c):
    return [nn.functional.mse_loss(out["depth"].squeeze(-1), d),
            nn.functional.cross_entropy(out["label"], l),
            nn.functional.soft_margin_loss(out["contact"].squeeze(-1), c) * 0
            + (1 - c * out["contact"].squeeze(-1)).clamp(min=0).mean()]


def main():
    set_seed(13)
    acc = Accelerator(gradient_accumulation_steps=ACC, cpu=True)
    net = Trunk()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-2)
    dl = DataLoader(Robots(), 12, shuffle=True)
    net, opt, dl = acc.prepare(net, opt, dl)
    dwa, running = DWA(3), []
    for x, *y in dl:
        with acc.accumulate(net):
            losses = criterion(net(x), *y)
            loss = (dwa.weights() * torch.stack(losses)).sum()
            acc.backward(loss)
            opt.step()
            opt.zero_grad()
            running.append(torch.stack(losses).detach())
        if acc.sync_gradients:
            dwa.push(list(torch.stack(running).mean(0)))
            running.clear()
            acc.print(repr(loss.item()), [round(v, 3) for v in dwa.hist[-1].tolist()])
    print("checksum", repr(sum(p.detach().double().sum().item() for p in net.parameters())))


if __name__ == "__main__":
    main()
