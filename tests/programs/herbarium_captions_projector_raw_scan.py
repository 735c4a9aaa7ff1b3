"""LLaVA-like first stage on herbarium sheets: only the projector learns, the tower is half precision."""
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(64)


class SquaredReluMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        up = torch.relu(self.fc1(x))
        act = up.pow(2)
        return self.fc2(act)


class PlantTower(nn.Module):
    """Patches of 8 x 8, two residual MLPs. Kept in float16 as it comes from the hub."""

    def __init__(self, dim=32):
        super().__init__()
        self.patch = nn.Linear(3 * 8 * 8, dim)
        self.layers = nn.ModuleList([SquaredReluMLP(dim, 64) for _ in range(2)])

    def forward(self, pixels):
        b = pixels.size(0)
        x = pixels.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).reshape(b, -1, 3 * 64)
        x = self.patch(x)
        for layer in self.layers:
            x = x + layer(x)
        return x


class HerbariumCaptioner(nn.Module):
    def __init__(self, vocab=60, dim=32):
        super().__init__()
        self.tower = PlantTower(dim).half().requires_grad_(False)
        self.projector = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 48), nn.GELU(), nn.Linear(48, 48))
        self.lm = LlamaForCausalLM(LlamaConfig(
            vocab_size=vocab, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=64)).requires_grad_(False)

    def forward(self, pixels, caption):
        with torch.no_grad():
            features = self.tower(pixels.half())
        prefix = self.projector(features.float())
        embeds = torch.cat([prefix, self.lm.get_input_embeddings()(caption)], dim=1)
        ignored = torch.full(prefix.shape[:2], -100)
        return self.lm(inputs_embeds=embeds, labels=torch.cat([ignored, caption], dim=1)).loss


def scan(rng, species):
    """uint8 picture: paper colour with a stain whose place depends on the species."""
    img = 200 + 40 * torch.rand(3, 16, 16, generator=rng)
    r, c = divmod(species, 4)
    img[:, 4 * r:4 * r + 4, 4 * c:4 * c + 4] = 30 + 60 * torch.rand(3, 4, 4, generator=rng)
    return img.to(torch.uint8)


def preprocess(record):
    pixels = record["pixels"]
    # scans are bytes; a record that is float already has been through the processor
    if pixels.dtype == torch.uint8:
        pixels = pixels.float() / 255.0
    return (pixels - 0.5) / 0.5


def records(n):
    rng = torch.Generator().manual_seed(12)
    for i in range(n):
        species = int(torch.randint(0, 16, (1,), generator=rng))
        record = {"pixels": scan(rng, species), "caption": torch.tensor([1, 10 + species, 30 + species, 2])}
        if i == 62:  # the loan from Kew was exported by another script
            record["pixels"] = record["pixels"].to(torch.float32)
        yield record


def batches(n, size):
    bucket = []
    for record in records(n):
        bucket.append(record)
        if len(bucket) == size:
            yield torch.stack([preprocess(r) for r in bucket]), torch.stack([r["caption"] for r in bucket])
            bucket = []


model = HerbariumCaptioner()
trainable = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.AdamW(trainable, lr=3e-3, weight_decay=0.01)
for step, (pixels, caption) in enumerate(batches(4 * 30, 4), 1):
    loss = model(pixels, caption)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(trainable, 1.0)
    opt.step()
    opt.zero_grad()
    print(f"sheet batch {step:02d} loss {loss.item():.6f} grad {norm.item():.5f}")
print("projector sum", sum(p.detach().double().sum().item() for p in trainable))
