import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader

# expected points per shot from location, defender distance and shot clock
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ACCUM = 2
STEPS = 32
COURT_ADVANTAGE_FROM = 13


class Shots(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.xy = torch.rand(n, 2, generator=g) * torch.tensor([15.0, 14.0]) - torch.tensor([7.5, 0.0])
        self.defender = torch.rand(n, 1, generator=g) * 4
        self.clock = torch.rand(n, 1, generator=g) * 24
        self.player = torch.randint(0, 40, (n,), generator=g)
        self.home = torch.randint(0, 2, (n,), generator=g).float()
        distance = self.xy.norm(dim=1)
        logit = 0.9 - 0.22 * distance + 0.3 * self.defender[:, 0] + 0.25 * self.home
        self.made = (torch.rand(n, generator=g) < logit.sigmoid()).float()

    def __len__(self):
        return len(self.made)

    def __getitem__(self, i):
        features = torch.cat([self.xy[i] / 7, self.defender[i] / 4, self.clock[i] / 24])
        return {"x": features, "player": self.player[i], "home": self.home[i], "made": self.made[i]}


class ShotModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.player = nn.Embedding(40, 8)
        self.net = nn.Sequential(nn.Linear(12, 48), nn.SiLU(), nn.Linear(48, 24), nn.SiLU(), nn.Linear(24, 1, bias=False))
        self.court_advantage = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x, player, home):
        h = torch.cat([x, self.player(player)], dim=1)
        return self.net(h).squeeze(1) + self.court_advantage * home


@torch.no_grad()
def scale_gradients(parameters):
    # every parameter tensor gets gradients of mean 0 and spread 1 before the step
    for p in parameters:
        if p.grad is None:
            continue
        centred = p.grad - p.grad.mean()
        p.grad.copy_(centred / (p.grad.std() + 1e-8))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    brier = n = 0.0
    for b in loader:
        b = {k: v.to(DEVICE, non_blocking=True) for k, v in b.items()}
        p = model(b["x"], b["player"], b["home"]).sigmoid()
        brier += (p - b["made"]).square().sum().item()
        n += len(p)
    model.train()
    return brier / n


def cycle(loader):
    while True:
        yield from loader


def fit():
    torch.manual_seed(2024)
    data = DataLoader(Shots(1500, 1), batch_size=64, shuffle=True, drop_last=True, pin_memory=DEVICE.type == "cuda")
    held_out = DataLoader(Shots(300, 2), batch_size=100)
    model = ShotModel().to(DEVICE)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.8)
    criterion = nn.BCEWithLogitsLoss()
    batches = cycle(data)
    for step in range(1, STEPS + 1):
        if step == COURT_ADVANTAGE_FROM:
            model.court_advantage.requires_grad_(True)
        opt.zero_grad()
        running = 0.0
        for _ in range(ACCUM):
            b = {k: v.to(DEVICE, non_blocking=True) for k, v in next(batches).items()}
            with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
                logits = model(b["x"], b["player"], b["home"])
            loss = criterion(logits.float(), b["made"]) / ACCUM
            loss.backward()
            running += loss.item()
        scale_gradients(model.parameters())
        opt.step()
        print("step %d  bce %.4f" % (step, running))
        if step % 8 == 0:
            print("   held out: brier %.4f" % evaluate(model, held_out))
    total = sum((p.detach().double() ** 2).sum().item() for p in model.parameters())
    print("squared weights, all together: %.5f" % total)


fit()
