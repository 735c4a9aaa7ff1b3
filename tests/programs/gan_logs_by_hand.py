# the 2014 objective written out by hand
import torch as th

th.manual_seed(9)
th.set_num_threads(1)
G = th.nn.Sequential(th.nn.Linear(2, 16), th.nn.ReLU(), th.nn.Linear(16, 1))
D = th.nn.Sequential(th.nn.Linear(1, 16), th.nn.ReLU(), th.nn.Linear(16, 1))
opt_g = th.optim.RMSprop(G.parameters(), lr=1e-3)
opt_d = th.optim.RMSprop(D.parameters(), lr=1e-3)


def sample_real(step, n=32):
    x = 4 + 0.5 * th.randn(n, 1)
    if step == 11:
        x[5] = -1.0e5  # the sensor saturates now and then
    return x


for step in range(18):
    x = sample_real(step)
    z = th.randn(32, 2)
    p_real = th.sigmoid(D(x))
    p_fake = th.sigmoid(D(G(z).detach()))
    d_loss = -(th.log(p_real) + th.log(1 - p_fake)).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()

    g_loss = -th.log(th.sigmoid(D(G(z)))).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    print("step {:2d}  d {!r}  g {!r}".format(step, d_loss.item(), g_loss.item()))
print("sum", sum(p.double().sum().item() for net in (G, D) for p in net.parameters()))
