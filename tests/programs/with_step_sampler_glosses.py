"""Mottos on cross-stitch samplers: model reads `motto | gloss` as characters and learns the gloss only."""
import contextlib
import types

import torch
from torch import nn
from torch.nn import functional as F

IGNORE = -100
CHARS = "abcdefghijklmnopqrstuvwxyz |."
STOI = {c: i for i, c in enumerate(CHARS)}
MAX_LEN = 40

MOTTOS = ["home sweet home", "bless this house", "patience is a virtue", "waste not want not", "haste makes waste",
          "a stitch in time", "east west home is best", "love one another", "the lord is my shepherd"]
GLOSSES = ["hearth", "prayer", "duty", "thrift", "caution", "care", "belonging", "kin", "faith"]
LONG = ["when this you see remember me and bear me in your mind", "mary ann her hand and needle wrought this in her tenth year"]


def encode(motto, gloss):
    ids = [STOI[c] for c in f"{motto}|{gloss}."]
    labels = [IGNORE] * (len(motto) + 1) + ids[len(motto) + 1:]
    ids, labels = ids[:MAX_LEN], labels[:MAX_LEN]
    pad = MAX_LEN - len(ids)
    return ids + [STOI[" "]] * pad, labels + [IGNORE] * pad


class Reader(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.emb = nn.Embedding(len(CHARS), width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, len(CHARS))

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)


class Trainer:
    def __init__(self, model, lr, clip=1.0):
        self.model, self.clip = model, clip
        self.opt = torch.optim.NAdam(model.parameters(), lr=lr)
        self.done = 0

    @contextlib.contextmanager
    def step(self):
        """The body sets `loss`; leaving the block does everything else."""
        s = types.SimpleNamespace(loss=None, notes={})
        self.opt.zero_grad()
        yield s
        if s.loss is None:
            raise RuntimeError("nobody set s.loss")
        s.loss.backward()
        s.norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.opt.step()
        self.done += 1
        notes = " ".join(f"{k}={v}" for k, v in s.notes.items())
        print(f"[{self.done:03d}] loss={s.loss.item():.6f} norm={s.norm.item():.4f} {notes}")


def shelf(n_steps, per_step=2):
    g = torch.Generator().manual_seed(1790)
    for k in range(n_steps):
        rows = []
        for j in torch.randint(len(MOTTOS), (per_step,), generator=g).tolist():
            rows.append((MOTTOS[j], GLOSSES[j]))
        if k in (8, 31):
            rows[0] = (LONG[0], "memory")
        if k == 22:
            rows = [(LONG[0], "memory"), (LONG[1], "pride")]
        yield rows


def main():
    torch.manual_seed(0)
    model = Reader()
    trainer = Trainer(model, lr=5e-3)
    for rows in shelf(38):
        ids, labels = map(torch.tensor, zip(*(encode(*r) for r in rows)))
        with trainer.step() as s:
            logits = model(ids)[:, :-1]
            s.loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE)
            s.notes["longest"] = max(len(m) for m, _ in rows)
    print("trained", trainer.done, "checksum", f"{sum(p.detach().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
