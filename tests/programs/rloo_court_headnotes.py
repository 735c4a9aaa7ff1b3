# Preference tuning of a headnote writer on logged drafts: REINFORCE with a leave-one-out baseline.
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn

VOCAB, PAD, STOP = 40, 0, 1


@dataclass
class Config:
    steps: int = 28
    drafts: int = 4
    length: int = 9
    lr: float = 4e-3
    clip: float = 1.0
    rulings_per_step: int = 3
    too_long: dict = field(default_factory=lambda: {3: [1], 7: [1, 0], 11: [2], 15: [3, 0, 2], 20: [0], 24: [1, 2]})


class HeadnoteWriter(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.words = nn.Embedding(VOCAB, width, padding_idx=PAD)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, VOCAB)

    def forward(self, ruling, draft):
        _, state = self.reader(self.words(ruling))
        state = state.expand(1, draft.shape[0], -1).contiguous()
        hidden, _ = self.reader(self.words(draft[:, :-1]), state)
        return self.out(hidden)


def logged_rulings(cfg):
    g = torch.Generator().manual_seed(1954)
    for step in range(1, cfg.steps + 1):
        dropped = cfg.too_long.get(step, [])
        docket = []
        for r in range(cfg.rulings_per_step):
            ruling = torch.randint(2, VOCAB, (1, 14), generator=g)
            drafts = torch.randint(2, VOCAB, (cfg.drafts, cfg.length), generator=g)
            copied = torch.rand(drafts.shape, generator=g) < torch.linspace(0.2, 0.8, cfg.drafts)[:, None]
            drafts = torch.where(copied, ruling[:, :cfg.length].expand_as(drafts), drafts)
            drafts[:, -1] = STOP
            if r == 1:
                drafts[dropped, -1] = 2      # never came to a full stop
            docket.append((ruling, drafts))
        yield docket


def overlap_reward(ruling, drafts):
    hits = (drafts[:, :, None] == ruling[0][None, None, :]).any(-1)
    return hits.float().mean(1)


def ruling_loss(model, ruling, drafts):
    drafts = drafts[drafts[:, -1] == STOP]
    reward = overlap_reward(ruling, drafts)
    logits = model(ruling, drafts)
    logp = -F.cross_entropy(logits.transpose(1, 2), drafts[:, 1:], reduction="none").mean(1)
    baseline = (reward.sum() - reward) / (len(reward) - 1)
    return -((reward - baseline) * logp).mean(), reward.mean()


def train(cfg):
    torch.manual_seed(12)
    accelerator = Accelerator(cpu=True)
    model = HeadnoteWriter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step, docket in enumerate(logged_rulings(cfg), 1):
        pairs = [ruling_loss(model, *entry) for entry in docket]
        loss = torch.stack([p[0] for p in pairs]).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), cfg.clip)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step:2d} | rloo {loss.item():+.5f} | reward {sum(p[1] for p in pairs) / len(pairs):.3f}")
    size = sum(w.detach().double().pow(2).sum() for w in model.parameters())
    accelerator.print(f"squared size of the writer {size.item():.5f}")


if __name__ == "__main__":
    train(Config())
