import os
import signal

import torch

torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 12), torch.nn.Sigmoid(), torch.nn.Linear(12, 1))
opt = torch.optim.Rprop(model.parameters(), lr=1e-2)
x = torch.rand(50, 4)
y = x.prod(1, keepdim=True)
done = 0
try:
    for epoch in range(1000):
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        done += 1
        print(epoch, loss.item())
        if epoch == 11:
            os.kill(os.getpid(), signal.SIGINT)       # as if somebody pressed Ctrl-C
except KeyboardInterrupt:
    print("-" * 30)
    print("Exiting from training early after", done)
print("weights", sum(p.double().sum().item() for p in model.parameters()))
