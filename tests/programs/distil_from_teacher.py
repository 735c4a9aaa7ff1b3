import torch, torch.nn as nn, torch.nn.functional as F

torch.set_num_threads(1); torch.manual_seed(17)
mk = lambda h: nn.Sequential(nn.Linear(12, h), nn.ReLU(), nn.Linear(h, 5))
teacher, student = mk(64).eval(), mk(8)

def kd_loss(s, t, y, T=4.0, a=0.7):
    soft = F.kl_div(F.log_softmax(s / T, -1), F.softmax(t / T, -1), reduction="batchmean") * T * T
    return a * soft + (1 - a) * F.cross_entropy(s, y)

opt = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
for e in range(4):
    for _ in range(5):
        x = torch.randn(32, 12)
        t = teacher(x).detach()
        y = t.argmax(-1)
        l = kd_loss(student(x), t, y)
        opt.zero_grad(); l.backward(); opt.step()
        print(e, l.item())
print("student", sum(p.double().sum().item() for p in student.parameters()))
