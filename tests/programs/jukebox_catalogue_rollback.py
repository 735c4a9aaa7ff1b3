import os, tempfile
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"
FACTORS, PATIENCE, EVERY = 12, 2, 3


class Plays(Dataset):
    """(listener, song played, song skipped); new releases come in with the second week"""

    def __init__(self, songs, n, seed, taste):
        g = torch.Generator().manual_seed(seed)
        self.user = torch.randint(0, 50, (n,), generator=g)
        a = torch.randint(0, songs, (n,), generator=g)
        b = torch.randint(0, songs, (n,), generator=g)
        first = taste[self.user, a] >= taste[self.user, b]
        self.pos, self.neg = torch.where(first, a, b), torch.where(first, b, a)

    def __len__(self):
        return len(self.user)

    def __getitem__(self, i):
        return self.user[i], self.pos[i], self.neg[i]


class Jukebox(nn.Module):
    def __init__(self, users, songs):
        super().__init__()
        self.users = nn.Embedding(users, FACTORS)
        self.songs = nn.Embedding(songs, FACTORS)
        nn.init.normal_(self.users.weight, std=0.1)
        nn.init.normal_(self.songs.weight, std=0.1)

    def forward(self, u, s):
        return (self.users(u) * self.songs(s)).sum(-1)

    def extend(self, songs):
        old = self.songs.weight.data
        fresh = torch.randn(songs - len(old), FACTORS, device=old.device)
        self.songs = nn.Embedding.from_pretrained(torch.cat([old, fresh]), freeze=False)


class Trainer:
    def __init__(self, model, folder, lr=0.08):
        self.model, self.lr = model.to(device), lr
        self.path = os.path.join(folder, "best.pt")
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.best, self.stale, self.step = float("inf"), 0, 0

    @torch.no_grad()
    def validate(self, loader):
        wrong = n = 0
        for u, p, s in loader:
            u, p, s = u.to(device), p.to(device), s.to(device)
            wrong += (self.model(u, p) <= self.model(u, s)).sum().item()
            n += len(u)
        return wrong / n

    def rollback(self):
        state = torch.load(self.path, map_location=device)
        self.model.load_state_dict(state["model"])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.lr / 2)
        print(f"  back to step {state['step']}")

    def run(self, loader, val_loader):
        for u, p, s in loader:
            u, p, s = (t.to(device, non_blocking=True) for t in (u, p, s))
            self.step += 1
            with torch.autocast(device, dtype=torch.bfloat16):
                margin = self.model(u, p) - self.model(u, s)
                loss = -F.logsigmoid(margin.float()).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            print(f"step {self.step} bpr {loss.item():.4f}")
            if self.step % EVERY == 0:
                error = self.validate(val_loader)
                print(f"  ranking error {error:.4f}")
                if error < self.best:
                    self.best, self.stale = error, 0
                    torch.save({"model": self.model.state_dict(), "step": self.step}, self.path)
                else:
                    self.stale += 1
                    if self.stale >= PATIENCE:
                        self.rollback()
                        self.stale = 0


if __name__ == "__main__":
    torch.manual_seed(4)
    taste = torch.randn(50, 4) @ torch.randn(4, 90)
    model = Jukebox(50, 60)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model, folder)
        trainer.run(DataLoader(Plays(60, 1024, 1, taste), batch_size=64, shuffle=True),
                    DataLoader(Plays(60, 300, 2, taste), batch_size=100))
        model.extend(90)
        trainer.optimizer.add_param_group({"params": [model.songs.weight]})
        print("catalogue has", model.songs.num_embeddings, "songs")
        trainer.run(DataLoader(Plays(90, 1280, 3, taste), batch_size=64, shuffle=True),
                    DataLoader(Plays(90, 300, 5, taste), batch_size=100))
    print("weights in all", round(sum(p.abs().sum().item() for p in model.parameters()), 3))
