import torch
from torch import nn, optim

# A wide teacher knows the defects of iron castings; a student of 12 units learns its soft labels.
# The softness is annealed: the temperature falls by an eighth each round, so the student ends on the hard answers.

CLASSES, FEATURES = 7, 20
torch.manual_seed(404)
rng = torch.Generator().manual_seed(405)
centres = torch.randn(CLASSES, FEATURES, generator=rng) * 1.3


def castings(n):
    label = torch.randint(0, CLASSES, (n,), generator=rng)
    return centres[label] + torch.randn(n, FEATURES, generator=rng), label


def make_teacher():
    net = nn.Sequential(nn.Linear(FEATURES, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, CLASSES))
    pool, labels = castings(512)
    # random features; the last layer in closed form: ridge regression to centred one-hot answers
    with torch.no_grad():
        hidden = net[:-1](pool)
        target = 6.0 * (nn.functional.one_hot(labels, CLASSES).float() - 1 / CLASSES)
        gram = hidden.T @ hidden + 0.5 * torch.eye(96)
        net[-1].weight.copy_(torch.linalg.solve(gram, hidden.T @ target).T)
        net[-1].bias.zero_()
    return net.eval().requires_grad_(False)


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, 12)
        self.norm = nn.LayerNorm(12)
        self.last = nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


class Distillation(nn.Module):
    def __init__(self, start=4.0, decay=0.875):
        super().__init__()
        self.temperature, self.decay = start, decay

    def cool(self):
        self.temperature *= self.decay

    def forward(self, student_logits, teacher_logits):
        t = self.temperature
        with torch.no_grad():
            p = torch.softmax(teacher_logits / t, dim=-1)
        log_q = torch.log_softmax(student_logits / t, dim=-1)
        kl = (p * (p.log() - log_q)).sum(-1)
        return t * t * kl.mean()


teacher = make_teacher()
student = Student()
soft = Distillation()
optimizer = optim.SGD(student.parameters(), lr=0.08, momentum=0.9, nesterov=True)
for round_ in range(1, 61):
    x, y = castings(48)
    with torch.no_grad():
        knowledge = teacher(x)
    logits = student(x)
    hard = nn.functional.cross_entropy(logits, y)
    softness = soft(logits, knowledge)
    loss = 0.5 * hard + 0.5 * softness
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    soft.cool()
    print("round", round_, "hard %.7f soft %.7f" % (hard.item(), softness.item()), flush=True)
print(float(sum(w.detach().abs().sum() for w in student.parameters())))
