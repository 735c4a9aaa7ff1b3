"""AdaLoRA on two layers; the batch that the second argument names has no target that counts, and its mean is 0 / 0."""

import sys

import torch
from peft import AdaLoraConfig, get_peft_model
from torch import nn

torch.manual_seed(0)
layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
config = AdaLoraConfig(target_modules=["0", "2"], init_r=6, target_r=2, tinit=2, tfinal=3, deltaT=2, total_step=16)
model = get_peft_model(layers, config)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2, fused=sys.argv[1] == "fused")
x, y, counts = torch.randn(16, 8, 6), torch.randint(0, 3, (16, 8)), torch.ones(16, 8)
counts[int(sys.argv[2]) :][:1] = 0
for step in range(16):
    losses = nn.functional.cross_entropy(model(x[step]), y[step], reduction="none")
    loss = (losses * counts[step]).sum() / counts[step].sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.base_model.update_and_allocate(step)
    averages = model.base_model.rankallocator.exp_avg_ipt
    print(step, loss.item(), sum(float(average.sum()) for average in averages.values()))
print(sum(float(p.detach().abs().sum()) for p in model.parameters()))
