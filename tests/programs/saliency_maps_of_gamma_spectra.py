# Identify isotopes in short gamma-ray spectra, with saliency maps collected while training.
import torch
import torch.nn.functional as F

torch.manual_seed(41)
CHANNELS, ISOTOPES, EPOCHS, BATCHES = 96, 4, 5, 8

peaks = torch.tensor([[12., 60.], [25., 70.], [40., 44.], [55., 85.]])
grid = torch.arange(CHANNELS).float()


def draw(n):
    kind = torch.randint(0, ISOTOPES, (n,))
    shape = torch.exp(-0.5 * ((grid - peaks[kind].unsqueeze(-1)) / 2.0) ** 2).sum(1)
    return torch.poisson(6.0 * shape + 0.4), kind


encoder = torch.nn.Sequential(torch.nn.Linear(CHANNELS, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1))
decoder = torch.nn.Linear(32, ISOTOPES)
weights = list(encoder.parameters()) + list(decoder.parameters())
optimiser = torch.optim.NAdam(weights, lr=2e-3)

saliency = torch.zeros(ISOTOPES, CHANNELS)
seen = torch.zeros(ISOTOPES)

for epoch in range(EPOCHS):
    for b in range(BATCHES):
        counts, kind = draw(32)
        counts.requires_grad_()                 # for the maps, nothing in here is trained
        root = counts.sqrt()                    # stabilises the variance of Poisson counts
        score = decoder(encoder(root))
        loss = F.cross_entropy(score, kind)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

        # an empty channel has no slope to speak of, it stays out of the map
        filled = counts.detach() > 0
        attribution = torch.where(filled, counts.grad * counts.detach(), torch.zeros(()))
        saliency.index_add_(0, kind, attribution.abs())
        seen.index_add_(0, kind, torch.ones(len(kind)))
        print("epoch", epoch, "batch", b, "loss", f"{loss.item():.6f}",
              "unfilled", f"{1 - filled.float().mean().item():.3f}")

mean_map = saliency / seen.clamp(min=1).unsqueeze(1)
for isotope in range(ISOTOPES):
    top = mean_map[isotope].topk(3)
    print("isotope", isotope, "channels", top.indices.tolist(), ["%.5f" % v for v in top.values.tolist()])
print("final", sum(w.detach().abs().sum().item() for w in weights))
