"""Self-distillation of a seaweed classifier: a student, and a teacher that is its moving average."""
import copy
import itertools

import torch
import torch.nn.functional as F

SPECIES = 7


class Shore:
    """Transect photos reduced to 20 colour features; few of them are labelled."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.centres = torch.randn(SPECIES, 20, generator=self.gen)

    def transects(self):
        for number in itertools.count(1):
            y = torch.randint(0, SPECIES, (24,), generator=self.gen)
            x = self.centres[y] + 0.9 * torch.randn(24, 20, generator=self.gen)
            if number <= 4:
                y = torch.full_like(y, -100)          # nobody has looked at these yet
            elif number % 6 == 0:
                y[:] = -100
            else:
                y[torch.rand(24, generator=self.gen) < 0.4] = -100
            yield number, x, y


class Distiller:
    def __init__(self, student, decay=0.8):
        self.student = student
        self.teacher = copy.deepcopy(student).requires_grad_(False)
        self.decay = decay
        self.opt = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.8)

    def temperature(self, number):
        return 1.0 + 0.25 * number                    # softer and softer

    def losses(self, x, y, number):
        tau = self.temperature(number)
        z = self.student(x)
        with torch.no_grad():
            target = F.log_softmax(self.teacher(x) / tau, -1)
        soft = tau ** 2 * F.kl_div(F.log_softmax(z / tau, -1), target, reduction="batchmean", log_target=True)
        known = y != -100
        hard = F.cross_entropy(z[known], y[known]) if known.any() else z.new_zeros(())
        return soft, hard

    def follow(self):
        with torch.no_grad():
            for t, s in zip(self.teacher.parameters(), self.student.parameters()):
                t.lerp_(s, 1 - self.decay)

    def swap(self):
        """Teacher and student change places; the optimizer forgets its momentum."""
        own = copy.deepcopy(self.student.state_dict())
        self.student.load_state_dict(self.teacher.state_dict())
        self.teacher.load_state_dict(own)
        self.opt.state.clear()


def fit(distiller, shore, last=38):
    for number, x, y in shore.transects():
        soft, hard = distiller.losses(x, y, number)
        loss = soft + hard
        distiller.opt.zero_grad()
        loss.backward()
        distiller.opt.step()
        distiller.follow()
        if number in (15, 27):
            distiller.swap()
        print(f"transect {number:2d}  loss {loss.item():.6f}  soft {soft.item():.6f}  labels {int((y >= 0).sum())}")
        if number == last:
            return


def main():
    torch.manual_seed(13)
    student = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, SPECIES))
    distiller = Distiller(student)
    fit(distiller, Shore(6))
    size = sum(p.double().square().sum().item() for m in (student, distiller.teacher) for p in m.parameters())
    print(f"squared weights of student and teacher: {size:.6f}")


main()
