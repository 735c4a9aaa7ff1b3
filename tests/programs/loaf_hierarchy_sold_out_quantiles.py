# Demand of three bakeries for four sorts of bread: quantiles for every branch, every sort and the whole firm.
# A shelf that was empty at closing time only tells that demand was at least what was sold.
import torch

INF = float("inf")
SHOPS = ("mill lane", "station", "harbour")
SORTS = ("rye", "spelt", "white", "rolls")
LEVELS = torch.tensor([0.1, 0.5, 0.9])


def summing_matrix():
    base = torch.eye(12)
    by_shop = torch.block_diag(*[torch.ones(1, 4)] * 3)
    by_sort = torch.eye(4).repeat(1, 3)
    return torch.cat([base, by_shop, by_sort, torch.ones(1, 12)])


def days(seed):
    """Yields weekday, lower and upper bound of demand (in dozens) for the 12 base series."""
    gen = torch.Generator().manual_seed(seed)
    level = 2 + 4 * torch.rand(12, generator=gen)
    day = 0
    while True:
        weekday = day % 7
        demand = level * (1.4 if weekday == 5 else 1.0) * torch.exp(0.2 * torch.randn(12, generator=gen))
        baked = level * 1.25
        sold_out = demand >= baked
        lower = torch.where(sold_out, baked, demand)
        upper = torch.where(sold_out, torch.full_like(demand, INF), demand)
        yield weekday, lower, upper
        day += 1


def interval_pinball(q, lower, upper):
    """Pinball loss that asks nothing of a quantile between the bounds."""
    short = torch.relu(lower.unsqueeze(-1) - q)
    over = torch.relu(q - upper.unsqueeze(-1))
    return LEVELS * short + (1 - LEVELS) * over


class ShopModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.week = torch.nn.Embedding(7, 6)
        self.head = torch.nn.Linear(6, 4 * 3)

    def forward(self, weekday):
        raw = self.head(self.week(weekday)).view(4, 3)
        first, gaps = raw[:, :1] + 3, torch.nn.functional.softplus(raw[:, 1:])
        return torch.cat([first, first + gaps.cumsum(-1)], dim=-1)


torch.manual_seed(6)
S = summing_matrix()
models = {shop: ShopModel() for shop in SHOPS}
optims = {shop: torch.optim.Adam(m.parameters(), lr=0.08) for shop, m in models.items()}
stream = days(seed=23)

for step in range(1, 43):
    weekday, lower, upper = next(stream)
    if weekday == 6:
        print(f"day {step}: closed on Sundays")
        continue
    closed = SHOPS[2] if weekday == 0 else None  # the harbour branch rests on Mondays
    base = []
    for shop in SHOPS:
        q = models[shop](torch.tensor(weekday))
        base.append(q.detach() if shop == closed else q)
    q = S @ torch.cat(base)
    known = S @ torch.where(torch.isinf(upper), torch.zeros(12), upper)
    anywhere_out = (S @ torch.isinf(upper).float()) > 0
    top = torch.where(anywhere_out, torch.tensor(INF), known)
    loss = interval_pinball(q, S @ lower, top).sum(-1)
    total = loss[:12].mean() + 0.2 * loss[12:].mean()
    for opt in optims.values():
        opt.zero_grad()
    total.backward()
    for shop, opt in optims.items():
        if shop != closed:
            opt.step()
    print(f"day {step}: loss {total.item():.4f}, sold out {int(torch.isinf(upper).sum())} of 12, highest bound {top.max().item():.2f}")

print("absolute weights of all branches:", sum(p.abs().sum().item() for m in models.values() for p in m.parameters()))
