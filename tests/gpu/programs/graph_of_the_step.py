import torch
import torch.nn as nn

torch.manual_seed(13)
model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
x, y = torch.zeros(32, 20, device="cuda"), torch.zeros(32, 2, device="cuda")
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
for step in range(30):
    data = torch.randn(32, 20, device="cuda")
    x.copy_(data)
    y.copy_(data[:, :2].sin())
    graph.replay()
    if step % 6 == 5:
        print("step", step, "loss", f"{loss.item():.6f}")
print("weights", sum(p.detach().double().abs().sum().item() for p in model.parameters()))
