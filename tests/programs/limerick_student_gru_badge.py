# weekend project: squeeze my little limerick transformer into a GRU that fits on the badge
import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(31)
LETTERS = "abcdefghijklmnopqrstuvwxyz ,\n"
V, T, B = len(LETTERS), 24, 12
verse = "there was an old man of the quay,\nwho painted his porridge with tea,\nwhen asked was it nice,\nhe said it twice,\nthen quietly rowed out to sea,\n"
ids = torch.tensor([LETTERS.index(c) for c in verse])


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, 32)
        self.pos = nn.Parameter(torch.randn(T, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(32, V)

    def forward(self, x):
        causal = nn.Transformer.generate_square_subsequent_mask(T)
        h = self.enc(self.tok(x) + self.pos, mask=causal, is_causal=True)
        return self.out(h) * 2.5, h


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, 16)
        self.gru = nn.GRU(16, 32, batch_first=True)
        self.out = nn.Linear(32, V)
        self.sharpness = nn.Parameter(torch.tensor([1.0]), requires_grad=False)

    def forward(self, x):
        h, _ = self.gru(self.tok(x))
        return self.out(h) * self.sharpness, h


def windows():
    start = torch.randint(0, len(ids) - T, (B,))
    return torch.stack([ids[s:s + T] for s in start])


def znorm_(params):
    """every gradient gets zero mean and unit spread, then AdamW needs no tuning"""
    for p in params:
        if p.grad is not None:
            p.grad = (p.grad - p.grad.mean()) / p.grad.std()


def phase(name, student, teacher, steps, first, objective):
    trainable = [p for p in student.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=3e-3, weight_decay=0.0)
    for i in range(first, first + steps):
        x = windows()
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            t_logits, t_hidden = teacher(x)
        loss = objective(student(x), t_logits.float(), t_hidden.float())
        opt.zero_grad()
        loss.backward()
        znorm_(trainable)
        opt.step()
        print(f"[{name}] {i:3d} {loss.item():.5f}")
    return first + steps


def hints(out, t_logits, t_hidden):
    return F.mse_loss(out[1], t_hidden.tanh()) + 0.1 * F.cross_entropy(out[0].flatten(0, 1), t_logits.argmax(-1).flatten())


def soft_letters(out, t_logits, t_hidden, tau=2.0):
    return tau ** 2 * F.kl_div((out[0] / tau).log_softmax(-1), (t_logits / tau).log_softmax(-1), reduction="none", log_target=True).sum(-1).mean()


teacher, student = Teacher().eval().requires_grad_(False), Student()
n = phase("hints", student, teacher, 16, 1, hints)
student.sharpness.requires_grad_(True)
n = phase("letters", student, teacher, 18, n, soft_letters)
print("student, sum |w|:", sum(p.detach().abs().sum().item() for p in student.parameters()))
