import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")      # else DeepSpeed prints the time of day
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset

# A head-flow curve network, trained on one family of pumps, is adapted to another with LoRA.


class PumpCurve(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.encode = torch.nn.Linear(5, width)
        self.mix = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, 1)

    def forward(self, x):
        x = torch.nn.functional.leaky_relu(self.encode(x))
        x = torch.nn.functional.leaky_relu(self.mix(x))
        return self.head(x)


set_seed(21)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
peft_config = LoraConfig(r=4, lora_alpha=160, target_modules=["encode", "mix"], lora_dropout=0.0, bias="none")
model = get_peft_model(PumpCurve(), peft_config)

x = torch.randn(200, 5)
y = (1.5 - 0.4 * x[:, :1] ** 2 + 0.2 * x[:, 1:2] * x[:, 2:3])
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=2e-3, momentum=0.9)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

model.train()
for step, (flow, head) in enumerate(loader):
    with accelerator.accumulate(model):
        error = model(flow) - head
        loss = error.square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(f"{step + 1:3d} {loss.item()!r}")
weights = accelerator.unwrap_model(model).state_dict()
accelerator.print(sum(w.double().sum().item() for w in weights.values()))
