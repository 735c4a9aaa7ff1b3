# every parameter has its own optimizer that steps as soon as its gradient is there (saves gradient memory)
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(
    nn.Embedding(50, 24), nn.Flatten(), nn.Linear(24 * 5, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 50))
optimizer_dict = {p: torch.optim.Adam([p], lr=1e-3, foreach=False) for p in model.parameters()}


def optimizer_hook(parameter) -> None:
    optimizer_dict[parameter].step()
    optimizer_dict[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)

for epoch in range(2):
    torch.manual_seed(100)
    for i in range(6):
        ctx = torch.randint(0, 50, (8, 5))
        loss = nn.functional.cross_entropy(model(ctx), ctx[:, -1])
        loss.backward()
        print(f"epoch {epoch} it {i} loss {loss.item()!r}")
print("sum", sum(p.double().sum().item() for p in model.parameters()))
