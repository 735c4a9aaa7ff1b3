import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)
netG = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
netD = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizerD = torch.optim.SGD(netD.parameters(), lr=1e20)
optimizerG = torch.optim.SGD(netG.parameters(), lr=1e20)

for i in range(10):
    real = torch.randn(8, 2) + 2
    netD.zero_grad()
    errD = criterion(netD(real), torch.ones(8, 1))
    fake = netG(torch.randn(8, 4))
    errD = errD + criterion(netD(fake.detach()), torch.zeros(8, 1))
    errD.backward()
    optimizerD.step()
    netG.zero_grad()
    errG = criterion(netD(fake), torch.ones(8, 1))
    errG.backward()
    optimizerG.step()
    print(i, errD.item(), errG.item(), flush=True)
