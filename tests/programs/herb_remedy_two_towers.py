"""Two towers for a herbalist's archive: complaints on one side, remedies on the other (accelerate, accumulation)."""
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

COMPLAINTS, WORDS, LENGTH = 1920, 120, 7
REMEDIES = 60
ACCUMULATE = 4


def archive():
    g = torch.Generator().manual_seed(66)
    recipe = torch.randint(1, WORDS, (REMEDIES, LENGTH), generator=g)
    which = torch.randint(0, REMEDIES, (COMPLAINTS,), generator=g)
    text = recipe[which].clone()
    noise = torch.rand(text.shape, generator=g) < 0.3
    text[noise] = torch.randint(0, WORDS, (int(noise.sum()),), generator=g)
    # a folded page: some complaints have no words left; 0 is the blank
    text[torch.rand(COMPLAINTS, generator=g) < 0.03] = 0
    return text, which, recipe


class Tower(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.score = nn.Linear(width, 1)
        self.out = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, ids):
        e = self.words(ids)
        s = self.score(e).squeeze(-1).masked_fill(ids == 0, float("-inf"))
        blank = (ids == 0).all(-1, keepdim=True)
        s = s.masked_fill(blank, 0.0)            # a blank complaint attends to its blanks
        pooled = (s.softmax(-1)[..., None] * e).sum(1)
        return F.normalize(self.out(pooled), dim=-1, eps=1e-6)


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = Tower(), Tower()

    def forward(self, complaint, remedy, which, temperature):
        q, d = self.left(complaint), self.right(remedy)
        logits = q @ d.t() / temperature
        same = which[:, None] == which[None]
        same.fill_diagonal_(False)
        logits = logits.masked_fill(same, float("-inf"))     # no false negatives
        return F.cross_entropy(logits, torch.arange(len(q))), logits


def recall_of_rare(logits, which):
    rare = which < 2
    hit = logits.argmax(-1) == torch.arange(len(which))
    return hit[rare].float().mean()                          # nan where no rare remedy was asked for


def main():
    set_seed(90)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    text, which, recipe = archive()
    loader = DataLoader(TensorDataset(text, which), batch_size=16, shuffle=True)
    model = Retriever()
    opt = torch.optim.AdamW(model.parameters(), lr=6e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / 20))
    model, opt, loader, sched = accelerator.prepare(model, opt, loader, sched)
    step, running = 0, 0.0
    for complaint, w in loader:
        # the second half is taught at a tenth of the temperature: the loss jumps there, as is meant
        temperature = 0.5 if step < 15 else 0.05
        with accelerator.accumulate(model):
            loss, logits = model(complaint, recipe[w], w, temperature)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
        running += loss.item() / ACCUMULATE
        if accelerator.sync_gradients:
            step += 1
            rare = recall_of_rare(logits.detach(), w).item()
            accelerator.print(f"step {step} t {temperature} loss {running:.6f} rare {rare:.3f} "
                              f"floor {logits.detach().min().item():.1f}", flush=True)
            running = 0.0
    weights = sum(p.detach().abs().sum().item() for p in model.parameters())
    accelerator.print(f"weights {weights:.4f}", flush=True)


if __name__ == "__main__":
    main()
