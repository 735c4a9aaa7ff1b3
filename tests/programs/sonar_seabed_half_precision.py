import torch
import torch.nn as nn


class EchoNet(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.front = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
        self.kind = nn.Linear(32, kinds)
        self.depth = nn.Linear(32, 1)

    def forward(self, ping):
        h = self.front(ping)
        return self.kind(h), self.depth(h)


KINDS = ["mud", "sand", "gravel", "rock", "seagrass"]


def pings(gen, n):
    kind = torch.randint(0, len(KINDS), (n,), generator=gen)
    depth = 5 + 35 * torch.rand(n, 1, generator=gen)
    t = torch.arange(64).float()
    arrival = depth * 0.9
    tail = 1.0 + 4.0 * kind[:, None].float()
    late = (t - arrival).clamp_min(0)
    echo = (t >= arrival) * torch.exp(-late / tail)
    ping = echo + 0.05 * torch.randn(n, 64, generator=gen)
    surveyed = torch.rand(n, 1, generator=gen) < 0.6
    depth = depth.masked_fill(~surveyed, float("nan"))      # most lines have no lead-line sounding
    return ping, kind, depth


class Survey:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.gen = torch.Generator().manual_seed(seed + 1)
        self.net = EchoNet(len(KINDS))
        self.opt = torch.optim.NAdam(self.net.parameters(), lr=1.2e-2)
        self.warm = torch.optim.lr_scheduler.LinearLR(self.opt, start_factor=0.1, total_iters=8)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 20, growth_factor=8.0, backoff_factor=0.25,
                                           growth_interval=5)

    def losses(self, ping, kind, depth):
        with torch.autocast("cpu", dtype=torch.float16):
            logits, guess = self.net(ping)
        known = ~depth.isnan()
        sounding = torch.nan_to_num(depth, nan=0.0) / 40
        miss = torch.where(known, (guess.float() - sounding) ** 2, torch.zeros(()))
        return nn.functional.cross_entropy(logits.float(), kind), 4 * miss.sum() / known.sum().clamp(min=1)

    def once(self, i):
        ping, kind, depth = pings(self.gen, 32)
        ce, sq = self.losses(ping, kind, depth)
        before = self.scaler.get_scale()
        self.scaler.scale(ce + sq).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad()
        if self.scaler.get_scale() >= before:
            self.warm.step()
        print(f"line {i:2d}  seabed {ce.item():.4f}  sounding {sq.item():.4f}  scale 2^{int(before).bit_length() - 1}")

    def run(self, lines):
        for i in range(1, lines + 1):
            self.once(i)
        return sum(p.detach().double().pow(2).sum().item() for p in self.net.parameters())


if __name__ == "__main__":
    print("squared weights:", Survey(230).run(44))
