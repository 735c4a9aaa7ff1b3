"""A subtitle model kept in float16 from end to end, with label smoothing written by hand over a
vocabulary of 12000 words."""
import torch
from torch import nn

torch.manual_seed(36)
torch.set_num_threads(1)
WORDS, WIDTH = 12000, 16


class Subtitles(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Linear(2 * WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, context):
        h = torch.tanh(self.mix(self.embed(context).flatten(1)))
        return self.out(h)


class SmoothedLoss:
    def __init__(self, smoothing):
        self.smoothing = smoothing

    def __call__(self, logits, target):
        logp = logits.log_softmax(-1)
        hit = -logp.gather(1, target[:, None]).squeeze(1)
        if self.smoothing == 0:
            return hit.mean()
        spread = -logp.sum(-1) / logits.shape[-1]
        return ((1 - self.smoothing) * hit + self.smoothing * spread).mean()


def windows(n=16):
    start = torch.randint(0, 400, (n,))
    context = torch.stack([start, start + 1], 1)
    return context, start + 2


def main():
    model = Subtitles().half()
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    criterion = SmoothedLoss(0.0)
    for step in range(1, 21):
        if step == 8:
            criterion.smoothing = 0.1                          # as in the paper: smoothing after a warm-up
        context, target = windows()
        opt.zero_grad()
        loss = criterion(model(context), target)
        loss.backward()
        opt.step()
        print(f"step {step:02d} loss {loss.item():.3f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
