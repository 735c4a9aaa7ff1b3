"""Tag firing curves of a ceramics kiln, minute by minute (ok / draught / element / lid).

The complete training step - forward, masked loss, backward - is one compiled callable; the
optimizer stays outside so that the graph need not be rebuilt when the learning rate moves.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

TAGS = ("ok", "draught", "element", "lid")
MINUTES, SENSORS, BATCH, STEPS = 24, 5, 6, 30
UNREVIEWED_SHIFT = 16        # firings of the night shift that the ceramist has not gone through yet


class Tagger(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.inp = nn.Linear(SENSORS, width)
        self.mix = nn.Conv1d(width, width, 5, padding=2, groups=4)
        self.out = nn.Linear(width, len(TAGS))

    def forward(self, curve):
        h = torch.tanh(self.inp(curve))
        h = h + F.silu(self.mix(h.transpose(1, 2))).transpose(1, 2)
        return self.out(h)


def firings(seed):
    """Yields (curve, tag, reviewed); reviewed says which minutes carry a label by a person."""
    g = torch.Generator().manual_seed(seed)
    teacher = torch.randn(SENSORS, len(TAGS), generator=g)
    for shift in range(STEPS):
        curve = torch.randn(BATCH, MINUTES, SENSORS, generator=g).cumsum(1) * 0.3
        tag = (curve @ teacher).argmax(-1)
        reviewed = torch.rand(BATCH, MINUTES, generator=g) < 0.35
        if shift == UNREVIEWED_SHIFT:
            reviewed = torch.zeros_like(reviewed)
        yield curve, tag, reviewed.float()


def build_step(model):
    def step(curve, tag, reviewed):
        logits = model(curve)
        per_minute = F.cross_entropy(logits.flatten(0, 1), tag.flatten(), reduction="none")
        picked = per_minute * reviewed.flatten()
        loss = picked.sum() / reviewed.sum()
        loss.backward()
        return loss.detach()

    # inductor takes longer than the training on the workshop laptop
    return torch.compile(step, backend="aot_eager")


def main():
    torch.manual_seed(41)
    torch.set_num_threads(1)
    model = Tagger()
    opt = torch.optim.AdamW(model.parameters(), lr=8e-3, weight_decay=0.01)
    train_step = build_step(model)

    for n, (curve, tag, reviewed) in enumerate(firings(17), start=1):
        opt.zero_grad(set_to_none=True)
        loss = train_step(curve, tag, reviewed)
        opt.step()
        print(f"shift {n:02d}  loss {loss.item():.6f}  labelled minutes {int(reviewed.sum())}")

    total = sum(p.detach().double().sum().item() for p in model.parameters())
    print(f"sum over weights {total:.6f}")


if __name__ == "__main__":
    main()
