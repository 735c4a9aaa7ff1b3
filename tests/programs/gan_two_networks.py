import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(123)
nz = 8

def weights_init(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight, 0.0, 0.05)
        nn.init.zeros_(m.bias)

netG = nn.Sequential(nn.Linear(nz, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2)).apply(weights_init)
netD = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Sigmoid()).apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(4, nz)
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))

for i in range(20):
    # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
    netD.zero_grad()
    angle = torch.rand(16) * 6.28
    real = torch.stack([angle.cos(), angle.sin()], 1)
    label = torch.full((16,), 1.0)
    errD_real = criterion(netD(real).view(-1), label)
    errD_real.backward()
    fake = netG(torch.randn(16, nz))
    label.fill_(0.0)
    errD_fake = criterion(netD(fake.detach()).view(-1), label)
    errD_fake.backward()
    optimizerD.step()
    # (2) Update G network: maximize log(D(G(z)))
    netG.zero_grad()
    label.fill_(1.0)
    errG = criterion(netD(fake).view(-1), label)
    errG.backward()
    optimizerG.step()
    print('[%d/20] Loss_D: %r Loss_G: %r' % (i, (errD_real + errD_fake).item(), errG.item()))
with torch.no_grad():
    print(netG(fixed_noise).tolist())
print(sum(p.double().sum().item() for n in (netG, netD) for p in n.parameters()))
