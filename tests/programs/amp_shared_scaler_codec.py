"""A compressing codec with side information: two optimizers, one gradient scaler, float16 autocast on the CPU."""
import torch
from torch import nn

torch.manual_seed(8)
torch.set_num_threads(1)

FRAME = 32


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.analysis = nn.Sequential(nn.Linear(FRAME, 48), nn.GELU(), nn.Linear(48, 8))
        self.synthesis = nn.Sequential(nn.Linear(8, 48), nn.GELU(), nn.Linear(48, FRAME))

    def forward(self, x):
        code = self.analysis(x)
        code = code + (torch.round(code.float()) - code.float()).detach()      # straight through
        return self.synthesis(code), code


class Entropy(nn.Module):
    """Bits of the code under a learned Laplace density."""

    def __init__(self):
        super().__init__()
        self.log_width = nn.Parameter(torch.zeros(8))

    def forward(self, code):
        width = self.log_width.exp()
        return (code.float().abs() / width + torch.log(2 * width)).sum(-1).mean()


def frames(generator):
    phase = torch.rand(24, 1, generator=generator) * 6.28
    tone = torch.rand(24, 1, generator=generator) * 0.8 + 0.1
    return 3 * torch.sin(torch.arange(FRAME) * tone + phase)


def main():
    generator = torch.Generator().manual_seed(1)
    codec, entropy = Codec(), Entropy()
    opt_codec = torch.optim.AdamW(codec.parameters(), lr=2e-3)
    opt_entropy = torch.optim.SGD(entropy.parameters(), lr=1e-2)
    # started a little high: the scaler comes down by itself in the first steps
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 17, growth_interval=15)
    for step in range(1, 46):
        x = frames(generator)
        with torch.autocast("cpu", dtype=torch.float16):
            y, code = codec(x)
        distortion = (y.float() - x).pow(2).sum(-1).mean()
        rate = entropy(code)
        opt_codec.zero_grad()
        opt_entropy.zero_grad()
        scaler.scale(distortion + 0.1 * rate).backward()
        scaler.unscale_(opt_codec)
        nn.utils.clip_grad_norm_(codec.parameters(), 10.0)
        scaler.step(opt_codec)
        scaler.step(opt_entropy)
        scaler.update()
        print(f"step {step} distortion {distortion.item():.3f} rate {rate.item():.3f} scale 2**"
              f"{int(torch.tensor(scaler.get_scale()).log2().round())}")


if __name__ == "__main__":
    main()
