# Sorting stamps by printing plate: a small pupil learns from an EMA copy of itself on lightly rubbed scans,
# plus the few plates that the catalogue confirms. The teacher's temperature falls over the run so that it commits itself.
import copy
import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1840)
PLATES, PIXELS, STEPS = 12, 64, 50
settings = {"lr": 5e-3, "ema": 0.9, "warm": 1.0, "cold": 0.01, "cool_from": 8, "cool_to": 38, "supervised_weight": 1.0}


class Scan:
    """Synthetic 8x8 scans: a plate is a template, a stamp is the template with ink noise and a cancel mark."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.templates = torch.randn(PLATES, PIXELS, generator=self.g)

    def draw(self, n):
        plate = torch.randint(PLATES, (n,), generator=self.g)
        img = self.templates[plate] + 0.4 * torch.randn(n, PIXELS, generator=self.g)
        return img, plate

    def rub(self, img):
        keep = (torch.rand(img.shape, generator=self.g) > 0.15).float()
        return img * keep + 0.1 * torch.randn(img.shape, generator=self.g)


def pupil_net():
    return nn.Sequential(nn.Linear(PIXELS, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 32), nn.GELU(), nn.Linear(32, PLATES))


class EmaTeacher:
    def __init__(self, pupil, decay):
        self.net, self.decay = copy.deepcopy(pupil).requires_grad_(False), decay

    @torch.no_grad()
    def follow(self, pupil):
        for t, p in zip(self.net.parameters(), pupil.parameters()):
            t.lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def opinion(self, img, temperature):
        return torch.softmax(self.net(img) / temperature, dim=-1)


def temperature_at(step):
    s = settings
    frac = min(max((step - s["cool_from"]) / (s["cool_to"] - s["cool_from"]), 0.0), 1.0)
    return s["warm"] + frac * (s["cold"] - s["warm"])


def disagreement(opinion, pupil_logits):
    """KL(teacher || pupil), written out so that the teacher's entropy shows up in the curve."""
    log_q = F.log_softmax(pupil_logits, dim=-1)
    log_p = torch.log(opinion)
    return (opinion * (log_p - log_q)).sum(-1).mean()


@contextlib.contextmanager
def ledger(opt):
    opt.zero_grad(set_to_none=True)
    yield
    opt.step()


def main():
    scans = Scan(6)
    pupil = pupil_net()
    teacher = EmaTeacher(pupil, settings["ema"])
    opt = torch.optim.Adam(pupil.parameters(), lr=settings["lr"])
    for step in range(1, STEPS + 1):
        img, plate = scans.draw(24)
        confirmed = slice(0, 8)                    # only a third of the lot is in the catalogue
        t = temperature_at(step)
        with ledger(opt):
            logits = pupil(scans.rub(img))
            kd = disagreement(teacher.opinion(img, t), logits)
            ce = F.cross_entropy(logits[confirmed], plate[confirmed])
            loss = kd + settings["supervised_weight"] * ce
            loss.backward()
        teacher.follow(pupil)
        print(f"lot {step:02d}  loss {loss.item():.6f}  kd {kd.item():.6f}  ce {ce.item():.6f}  T {t:.3f}")
    print("pupil", f"{sum(p.detach().double().sum().item() for p in pupil.parameters()):.6f}")


main()
