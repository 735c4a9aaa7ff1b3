from collections import namedtuple
import torch

# Score-informed drum transcription: spectral templates of the kit (Lee & Seung's step size for the templates)
# and a little network that hears the strength of each stroke.

KIT = ("kick", "snare", "hat", "cymbal")
BINS, FRAMES, BARS = 20, 32, 38
Bar = namedtuple("Bar", "spectrum played")
rng = torch.Generator().manual_seed(1959)


def true_templates():
    f = torch.arange(BINS).float()[:, None]
    centre = torch.tensor([2.0, 7.0, 15.0, 12.0])
    width = torch.tensor([1.5, 3.0, 2.5, 6.0])
    return torch.exp(-0.5 * ((f - centre) / width) ** 2)


def drummer():
    kit = true_templates()
    for number in range(1, BARS + 1):
        beat = torch.zeros(len(KIT), FRAMES)
        beat[0, ::8] = 1.0
        beat[1, 4::8] = 0.8
        beat[2, ::2] = 0.4
        if number <= 19:                       # the cymbal opens the bars of verse and chorus
            beat[3, 0] = 1.2
        beat = beat * (0.8 + 0.4 * torch.rand(beat.shape, generator=rng))
        noise = 0.02 * torch.rand(BINS, FRAMES, generator=rng)
        yield Bar(kit @ beat + noise, (beat > 0).float())


class Ear(torch.nn.Module):
    """hears a spectrum, answers with a strength for every drum in every frame"""

    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Conv1d(BINS, 16, 3, padding=1)
        self.out = torch.nn.Conv1d(16, len(KIT), 1)
        self.templates = torch.nn.Parameter(torch.rand(BINS, len(KIT)) * 0.5 + 0.1)

    def forward(self, bar):
        h = torch.tanh(self.hidden(bar.spectrum[None]))
        strength = torch.nn.functional.softplus(self.out(h)[0]) * bar.played
        return strength, self.templates @ strength


def lee_seung(templates, strength):
    with torch.no_grad():
        gram = strength @ strength.T / (BINS * FRAMES)
        rate = templates / (templates @ gram)
        templates.sub_(0.25 * rate * templates.grad)


def train():
    torch.manual_seed(4)
    ear = Ear()
    strokes = torch.optim.RMSprop([*ear.hidden.parameters(), *ear.out.parameters()], lr=3e-3)
    for number, bar in enumerate(drummer(), 1):
        strength, rebuilt = ear(bar)
        loss = 0.5 * (rebuilt - bar.spectrum).square().mean()
        ear.zero_grad()
        loss.backward()
        strokes.step()
        lee_seung(ear.templates, strength.detach())
        print("bar %2d | error %.5f | loudest %.3f" % (number, loss.item(), strength.max().item()))
    return ear


ear = train()
print("sum of absolute weights of the ear: %r" % sum(p.abs().sum().item() for p in ear.parameters()))
