# Beamforming by plain gradient ascent on the radiated power towards one direction,
# minus what leaks into two protected directions. Amplitudes are free here, they are
# normalised to the power budget of the amplifier afterwards.
import math

import torch

ELEMENTS = 24
SPACING = 0.5
LOOK, PROTECT = 20.0, (-35.0, 48.0)


def steering(angle_deg):
    n = torch.arange(ELEMENTS)
    phase = 2 * math.pi * SPACING * n * math.sin(math.radians(angle_deg))
    return torch.polar(torch.ones(ELEMENTS), phase)


class Beam(torch.nn.Module):
    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(55)
        w = 0.02 * torch.randn(ELEMENTS, 2, generator=g)
        self.w = torch.nn.Parameter(w)
        self.register_buffer("look", steering(LOOK))
        self.register_buffer("protect", torch.stack([steering(a) for a in PROTECT]))

    def weights(self):
        return torch.view_as_complex(self.w)

    def forward(self):
        w = self.weights()
        towards = torch.vdot(self.look, w).abs().square()
        leak = (self.protect.conj() @ w).abs().square().sum()
        return towards, leak


beam = Beam()
ascent = torch.optim.SGD(beam.parameters(), lr=4e-3, maximize=True)
for it in range(50):
    towards, leak = beam()
    loss = towards - 0.5 * leak
    ascent.zero_grad()
    loss.backward()
    ascent.step()
    print(f"{it:3d} objective {loss.item():.5g} towards {towards.item():.5g} leak {leak.item():.3g}")

with torch.no_grad():
    w = beam.weights()
    w = w / w.abs().square().sum().sqrt()
    gain = torch.vdot(beam.look, w).abs().square()
    print(f"directivity {10 * math.log10(gain.item()):.2f} dB of {10 * math.log10(ELEMENTS):.2f} dB")
    print("|w|^2", beam.w.square().sum().item())
