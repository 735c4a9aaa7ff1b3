import torch
from transformers import ViTConfig, ViTForImageClassification

SPECIES = ["peacock", "brimstone", "comma", "ringlet"]
LAYERS = 5
STEPS = 40


def wings(n, gen):
    label = torch.randint(0, len(SPECIES), (n,), generator=gen)
    grid = torch.linspace(-1, 1, 16)
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    radius = (xx ** 2 + yy ** 2).sqrt()
    rings = torch.cos((2.0 + 2.0 * label.float())[:, None, None] * radius * 2)
    image = torch.stack([rings, rings * (xx > 0), 0.5 * label.float()[:, None, None] + 0 * rings], 1)
    return image + 0.1 * torch.randn(image.shape, generator=gen), label


def depth_of(name):
    """0 for the patch embedding, 1 .. LAYERS for the blocks, LAYERS + 1 for the head."""
    if "embeddings" in name:
        return 0
    for part in name.split("."):
        if part.isdigit():
            return 1 + int(part)
    return LAYERS + 1


def layerwise_groups(model, lr, decay):
    groups = {}
    for name, p in model.named_parameters():
        flat = p.ndim == 1
        key = (depth_of(name), flat)
        groups.setdefault(key, {"params": [], "lr": lr / decay ** depth_of(name), "weight_decay": 0.0 if flat else 0.02})
        groups[key]["params"].append(p)
    return [groups[k] for k in sorted(groups)]


def exponential_warmup(step):
    return 10 ** (3 * ((step + 1) / STEPS - 1))


def train():
    torch.manual_seed(19)
    config = ViTConfig(image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4,
                       intermediate_size=64, num_labels=len(SPECIES), hidden_dropout_prob=0.0)
    model = ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(layerwise_groups(model, lr=2e-3, decay=0.3), betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, exponential_warmup)
    gen = torch.Generator().manual_seed(20)
    for step in range(1, STEPS + 1):
        image, label = wings(48, gen)
        out = model(pixel_values=image, labels=label)
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        schedule.step()
        hit = (out.logits.argmax(-1) == label).float().mean().item()
        print(f"step {step:02d} loss {out.loss.item():.4f} accuracy {hit:.2f}")
    return model


if __name__ == "__main__":
    wing_net = train()
    print("sum of squared weights", sum(p.detach().square().sum().item() for p in wing_net.parameters()))
