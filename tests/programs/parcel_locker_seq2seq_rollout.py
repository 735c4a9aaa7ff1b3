"""Encoder-decoder for the number of parcels per locker, hours ahead. Teacher forcing first, then on its own."""
import torch

torch.manual_seed(14)
HID, PAST, AHEAD = 12, 24, 24


class Cell(torch.nn.Module):
    def __init__(self, n_in, n_hid):
        super().__init__()
        self.gate = torch.nn.Linear(n_in + n_hid, n_hid)
        self.cand = torch.nn.Linear(n_in + n_hid, n_hid)

    def forward(self, x, h):
        xh = torch.cat([x, h], 1)
        z = torch.sigmoid(self.gate(xh))
        return z * h + (1 - z) * torch.tanh(self.cand(xh))


class Forecaster(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = Cell(1, HID)
        self.dec = Cell(1, HID)
        self.head = torch.nn.Linear(HID, 1)
        self.last = torch.nn.Linear(1, 1, bias=False)

    def forward(self, past, future, forcing):
        h = past.new_zeros(len(past), HID)
        for i in range(PAST):
            h = self.enc(past[:, i:i + 1], h)
        prev, logs = past[:, -1:], []
        for i in range(AHEAD):
            h = self.dec(prev, h)
            log_rate = self.head(h) + self.last(prev)
            logs.append(log_rate)
            prev = future[:, i:i + 1] if forcing else torch.exp(log_rate)
        return torch.cat(logs, 1)


def lockers(n, g):
    hour = torch.arange(PAST + AHEAD) + torch.randint(0, 24, (n, 1), generator=g)
    size = 1.5 + 1.5 * torch.rand(n, 1, generator=g)
    rate = size * (1.1 + torch.sin(hour * 0.2618))
    return torch.poisson(rate, generator=g)


def poisson_loss(logs, target):
    return (torch.exp(logs) - target * logs).mean()


def main():
    g = torch.Generator().manual_seed(9)
    model = Forecaster()
    opt = torch.optim.RMSprop(model.parameters(), lr=0.02)
    for step in range(1, 37):
        seq = lockers(20, g)
        past, future = seq[:, :PAST], seq[:, PAST:]
        forcing = step <= 20
        loss = poisson_loss(model(past, future, forcing), future)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print("step %d %s loss %.4f" % (step, "forced" if forcing else "free", loss.item()))
    print("sum of |w| at the end: %r" % sum(p.abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
