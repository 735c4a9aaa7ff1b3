import logging
import torch

logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
torch.manual_seed(5)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
skipped = updates = 0
for step in range(24):
    x = torch.rand(6, 3)
    if step % 7 == 3:
        x = x - 1          # log of something negative: this loop knows about it
    y = torch.log(x.sum(1, keepdim=True))
    loss = torch.nn.functional.mse_loss(net(x), y)
    if not torch.isfinite(loss):
        logging.warning("skipping batch %d", step)
        skipped += 1
        continue
    opt.zero_grad()
    loss.backward()
    opt.step()
    updates += 1
    print(step, loss.item())
print("skipped", skipped, "updates", updates, sum(p.double().sum().item() for p in net.parameters()))
