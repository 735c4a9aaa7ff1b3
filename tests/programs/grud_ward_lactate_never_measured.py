# GRU with decay on ward charts: six values, irregular, many never measured for a patient.
import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

VALUES = ["pulse", "pressure", "lactate", "creatinine", "sodium", "temperature"]


class Charts(Dataset):
    def __init__(self, n, steps=10):
        g = torch.Generator().manual_seed(77)
        level = torch.randn(n, 1, len(VALUES), generator=g)
        drift = torch.randn(n, 1, len(VALUES), generator=g) * torch.linspace(0, 1, steps)[None, :, None]
        x = level + drift + 0.2 * torch.randn(n, steps, len(VALUES), generator=g)
        self.label = ((x[:, -1, 2] + x[:, -1, 3]) > 0).float()
        taken = torch.rand(n, steps, len(VALUES), generator=g) < torch.tensor([0.8, 0.7, 0.3, 0.3, 0.4, 0.6])
        taken &= torch.rand(n, 1, len(VALUES), generator=g) < 0.85
        self.x = x.masked_fill(~taken, float("nan"))
        self.hours = torch.rand(n, steps, generator=g).cumsum(1) * 2

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        x, t = self.x[i], self.hours[i]
        since = torch.full_like(x, float("inf"))     # inf: not measured so far
        last_t = torch.full((x.shape[1],), float("-inf"))
        carried = torch.full_like(x, float("nan"))
        last_x = torch.full((x.shape[1],), float("nan"))
        for k in range(len(t)):
            since[k] = t[k] - last_t
            carried[k] = last_x
            seen = ~x[k].isnan()
            last_t = torch.where(seen, t[k], last_t)
            last_x = torch.where(seen, x[k], last_x)
        return {"x": x, "since": since, "carried": carried, "label": self.label[i]}


class GRUD(nn.Module):
    def __init__(self, d, hidden=20):
        super().__init__()
        self.rate = nn.Parameter(torch.full((d,), 0.2))
        self.usual = nn.Parameter(torch.zeros(d))
        self.hidden_rate = nn.Linear(d, hidden)
        self.cell = nn.GRUCell(2 * d, hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x, since, carried):
        never = since.isinf()
        gap = torch.where(never, 0.0, since)
        old = torch.where(never, 0.0, carried)
        keep = torch.where(never, 0.0, torch.exp(-torch.relu(self.rate) * gap))
        guess = keep * old + (1 - keep) * self.usual
        missing = x.isnan()
        filled = torch.where(missing, guess, x)
        h = x.new_zeros(x.shape[0], self.cell.hidden_size)
        for k in range(x.shape[1]):
            h = h * torch.exp(-torch.relu(self.hidden_rate(gap[:, k])))
            h = self.cell(torch.cat([filled[:, k], (~missing[:, k]).float()], 1), h)
        return self.head(h).squeeze(1)


def main():
    torch.manual_seed(2)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(Charts(256), batch_size=32, shuffle=True)
    model = GRUD(len(VALUES))
    opt = torch.optim.RMSprop(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CyclicLR(opt, 1e-3, 8e-3, step_size_up=6)
    model, opt, loader, sched = accelerator.prepare(model, opt, loader, sched)
    step = 0
    for epoch in range(5):
        for b in loader:
            step += 1
            logit = model(b["x"], b["since"], b["carried"])
            loss = nn.functional.binary_cross_entropy_with_logits(logit, b["label"])
            opt.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 2.0)
            opt.step()
            sched.step()
            longest = b["since"].max().item()
            accelerator.print(f"step {step} loss {loss.item():.4f} longest gap {longest:.1f} h")
    total = sum(p.detach().abs().sum() for p in model.parameters())
    accelerator.print("weights, absolute sum:", float(total))


if __name__ == "__main__":
    main()
