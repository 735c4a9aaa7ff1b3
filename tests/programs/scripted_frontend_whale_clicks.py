"""Sperm whale codas: which clan clicks? The net is TorchScript because the buoy runs it from C++."""
import warnings
from typing import List, Tuple

import torch
from torch import Tensor, nn

warnings.filterwarnings("ignore")        # torch.jit is said to be on its way out; the buoy does not know

RATE, FRAME, CLANS = 640, 32, 4


class LevelFrontend(nn.Module):
    """Frame levels in dB, relative to the loudest frame of the clip."""

    def __init__(self, frame: int):
        super().__init__()
        self.frame = frame

    def forward(self, wave: Tensor) -> Tensor:
        frames = wave.unfold(-1, self.frame, self.frame)
        power = frames.pow(2).mean(-1)
        level = 10.0 * torch.log10(power)
        return (level - level.amax(-1, keepdim=True)) / 20.0


class CodaNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.frontend = LevelFrontend(FRAME)
        self.conv = nn.Conv1d(1, 12, 3, padding=1)
        self.clan = nn.Linear(12 * (RATE // FRAME), CLANS)

    def forward(self, wave: Tensor) -> Tensor:
        x = self.frontend(wave).unsqueeze(1)
        return self.clan(torch.relu(self.conv(x)).flatten(1))


@torch.jit.script
def smoothed_loss(logits: Tensor, clan: Tensor, eps: float) -> Tensor:
    logp = torch.log_softmax(logits, -1)
    hit = logp.gather(1, clan.unsqueeze(1)).squeeze(1)
    return -((1.0 - eps) * hit + eps * logp.mean(-1)).mean()


def hydrophone(day: int, g: torch.Generator) -> Tuple[Tensor, Tensor]:
    clan = torch.randint(CLANS, (8,), generator=g)
    wave = 0.02 * torch.randn(8, RATE, generator=g)
    for i, c in enumerate(clan.tolist()):
        for k in range(3 + c):
            at = 40 + k * (60 + 15 * c)
            wave[i, at:at + 12] += torch.randn(12, generator=g)
    if day == 22:
        wave[5, 400:470] = 0.0           # the recorder writes zeros while it changes its memory card
    return wave, clan


def main() -> None:
    torch.manual_seed(52)
    torch.set_num_threads(1)
    net = torch.jit.script(CodaNet())
    opt = torch.optim.Adagrad(net.parameters(), lr=0.03)
    g = torch.Generator().manual_seed(25)
    history: List[float] = []
    for day in range(1, 41):
        wave, clan = hydrophone(day, g)
        loss = smoothed_loss(net(wave), clan, 0.05)
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
        print("day %2d  loss %.6f" % (day, history[-1]))
    print("weights sum to %.6f" % sum(float(p.detach().sum()) for p in net.parameters()))


if __name__ == "__main__":
    main()
