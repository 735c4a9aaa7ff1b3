import os
import signal
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(10, 10)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 20):
    loss = (model(torch.randn(8, 10)) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item(), flush=True)
    if step == 9:
        os.kill(os.getpid(), signal.SIGKILL)      # what the kernel does when memory is gone
