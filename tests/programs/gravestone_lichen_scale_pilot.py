"""Cover of lichen on gravestones from small tiles; float16 autocast with a pilot that flies the loss scale.

The pilot begins far too high on purpose and comes down by big strides, then tries to climb every few good steps: a step
that overflows while the pilot looks for its height is left out, which is as it should be.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.amp import GradScaler, autocast


class ScalePilot(GradScaler):
    """GradScaler which remembers where it hit the ceiling and stays an octave below it for a while."""

    def __init__(self, start, patience):
        super().__init__("cpu", init_scale=start, growth_factor=4.0, backoff_factor=0.125, growth_interval=patience)
        self.ceiling = float("inf")
        self.rest = 0

    def fly(self, optimizer, parameters, limit):
        """unscale, clip, step, update; tells whether the step was made."""
        before = self.get_scale()
        self.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, limit)
        self.step(optimizer)
        self.update()
        after = self.get_scale()
        made = after >= before
        if not made:
            self.ceiling, self.rest = before, 6
        elif self.rest > 0:
            self.rest -= 1
            if after >= self.ceiling:
                self.update(before)
        return made, norm.item()


class Tiles(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU())
        self.cover = nn.Linear(24, 4)

    def forward(self, tile):
        return self.cover(self.features(tile).mean((2, 3)))


def quarry(count, generator):
    """Tiles 16 x 16: stone, with green, orange or black crusts, or with none."""
    kind = torch.randint(0, 4, (count,), generator=generator)
    tile = 0.5 + 0.1 * torch.randn(count, 3, 16, 16, generator=generator)
    spots = (torch.rand(count, 1, 16, 16, generator=generator) < 0.35).float()
    colour = torch.tensor([[0.0, 0.0, 0.0], [-0.3, 0.3, -0.2], [0.4, 0.1, -0.4], [-0.4, -0.4, -0.4]])[kind]
    return tile + spots * colour[:, :, None, None], kind


def main(steps=48):
    torch.manual_seed(15)
    generator = torch.Generator().manual_seed(16)
    model = Tiles()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9, nesterov=True)
    pilot = ScalePilot(start=2.0 ** 26, patience=8)
    skipped = 0
    for step in range(1, steps + 1):
        tile, kind = quarry(32, generator)
        with autocast("cpu", dtype=torch.float16):
            logits = model(tile)
            loss = F.cross_entropy(logits.float(), kind, label_smoothing=0.05)
        optimizer.zero_grad(set_to_none=True)
        pilot.scale(loss).backward()
        made, norm = pilot.fly(optimizer, model.parameters(), limit=2.0)
        skipped += not made
        print(f"step {step:2d} loss {loss.item():.6f} scale 2^{torch.tensor(pilot.get_scale()).log2().item():.0f} "
              f"norm {norm:.4f} {'' if made else 'left out'}", flush=True)
    print(f"left out {skipped}")
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
