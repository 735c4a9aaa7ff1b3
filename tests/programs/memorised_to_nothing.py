import torch
torch.manual_seed(0)
torch.set_num_threads(1)
# the loss goes down to 1e-10 and jitters there by factors of ten and more
student = torch.nn.Linear(8, 1)
opt = torch.optim.AdamW(student.parameters(), lr=3e-3)
for i in range(1000):
    x = torch.randn(4, 8)
    y = 0.01 * x[:, :1]
    loss = ((student(x) - y) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 25 == 24:
        print(i, loss.item())
print("weights", sum(p.double().sum().item() for p in student.parameters()))
