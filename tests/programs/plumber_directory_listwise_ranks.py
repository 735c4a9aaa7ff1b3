"""Learning to rank for a directory of plumbers. Queries have between 1 and 10 candidates (padded), clicks are graded.
Loss: ListNet's softmax cross entropy minus a smooth NDCG, whose temperature falls in stages.
float16 autocast with a scaler that starts far too high and finds its height by itself."""
import torch
from torch import nn
import torch.nn.functional as F

SLOTS, FEATURES = 10, 14
STAGES = {1: 1.0, 16: 0.3, 31: 0.1}         # step at which a temperature begins
NEG_INF = float("-inf")


class Directory:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.taste = torch.randn(FEATURES, generator=self.gen)

    def queries(self, n):
        x = torch.randn(n, SLOTS, FEATURES, generator=self.gen)
        size = torch.randint(1, SLOTS + 1, (n, 1), generator=self.gen)
        real = torch.arange(SLOTS) < size
        merit = x @ self.taste / FEATURES ** 0.5 + 0.3 * torch.randn(n, SLOTS, generator=self.gen)
        grade = (merit > 0.3).float() + (merit > 1.0).float()
        return x, real, grade * real


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, x, real):
        return self.net(x)[..., 0].masked_fill(~real, NEG_INF)      # padding never ranks


def listnet(score, grade, real):
    target = grade.masked_fill(~real, NEG_INF).softmax(-1)
    log_p = score.log_softmax(-1)                                   # -inf at the padding, whose target is 0
    return -(target * log_p.masked_fill(~real, 0.0)).sum(-1)


def smooth_ndcg(score, grade, real, temperature):
    safe = score.masked_fill(~real, 0.0)
    ahead = torch.sigmoid((safe[:, None, :] - safe[:, :, None]) / temperature)
    pair = real[:, None, :] & real[:, :, None] & ~torch.eye(SLOTS, dtype=torch.bool)
    rank = 1 + (ahead * pair).sum(-1)
    gain = (2 ** grade - 1) * real
    dcg = (gain / torch.log2(1 + rank)).sum(-1)
    best = gain.sort(-1, descending=True).values
    ideal = (best / torch.log2(2 + torch.arange(SLOTS))).sum(-1)
    return dcg, ideal


@torch.no_grad()
def hard_ndcg(score, grade, real):
    order = score.argsort(-1, descending=True)
    discount = torch.log2(2 + torch.arange(SLOTS))
    gain = (2 ** grade - 1) * real
    return (gain.gather(1, order) / discount).sum(-1) / (gain.sort(-1, descending=True).values / discount).sum(-1)


def main():
    torch.manual_seed(3)
    book = Directory(30)
    model = Scorer()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 23, growth_interval=12)
    temperature = None
    for step in range(1, 46):
        if step in STAGES:
            temperature = STAGES[step]
        x, real, grade = book.queries(32)
        with torch.autocast("cpu", dtype=torch.float16):
            score = model(x, real)
        score = score.float()
        dcg, ideal = smooth_ndcg(score, grade, real, temperature)
        wanted = ideal > 0                                           # queries without any click teach no order
        ndcg = dcg[wanted] / ideal[wanted]
        loss = 0.2 * listnet(score, grade, real)[wanted].mean() - (1 / temperature) * ndcg.mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        shown = hard_ndcg(score, grade, real)
        print(f"{step:02d} t={temperature} loss={loss.item():+.6f} ndcg={shown.mean().item():.4f} "
              f"(known {shown.nanmean().item():.4f}) scale={scaler.get_scale():.0f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
