import io
import torch
import torch.nn as nn

# hectares of kelp canopy per tile from six reflectance bands; bf16 autocast with a loss scaler,
# and an interruption after half of the run (the ship's computer is switched off at night)

torch.manual_seed(64)
torch.set_num_threads(1)

bands = torch.rand(512, 6)
ndvi = (bands[:, 3] - bands[:, 2]) / (bands[:, 3] + bands[:, 2] + 0.1)
hectares = 18 + 25 * ndvi.clamp(min=0) + 4 * bands[:, 5] + torch.randn(512)


def new_run():
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 124, growth_interval=3)
    return model, opt, scaler


def one_step(model, opt, scaler, step, done):
    rows = torch.arange(step * 32, step * 32 + 32) % 512
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        guess = model(bands[rows]).squeeze(1)
        loss = nn.functional.mse_loss(guess.float(), hectares[rows])
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    taken = scaler.get_scale() >= before
    print("step", step + 1, "mse", f"{loss.item():.3f}", "scale 2 **", torch.tensor(before).log2().int().item(),
          "" if taken else "(not taken)")
    return done + taken


model, opt, scaler = new_run()
done = 0
for step in range(20):
    done = one_step(model, opt, scaler, step, done)

disk = io.BytesIO()
torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "scaler": scaler.state_dict(), "step": step + 1}, disk)
del model, opt, scaler
disk.seek(0)

model, opt, scaler = new_run()
saved = torch.load(disk)
model.load_state_dict(saved["model"])
opt.load_state_dict(saved["opt"])
scaler.load_state_dict(saved["scaler"])
print("next morning, from step", saved["step"])
for step in range(saved["step"], 40):
    done = one_step(model, opt, scaler, step, done)

print("updates taken:", done)
print("sum of squared weights", f"{sum(p.detach().pow(2).sum().item() for p in model.parameters()):.5f}")
