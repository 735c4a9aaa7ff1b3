# Distil a character model of ferry notices from a teacher of which only the eight best logits were kept on disk.
import torch
import torch.nn as nn
import torch.nn.functional as F

CHARS = 48
KEEP = 8
TEMPERATURE = 2.0


def make_cache(n_rows=96, length=20, seed=11):
    g = torch.Generator().manual_seed(seed)
    table = 3.0 * torch.randn(CHARS, CHARS, generator=g)
    text = torch.zeros(n_rows, length + 1, dtype=torch.long)
    text[:, 0] = torch.randint(CHARS, (n_rows,), generator=g)
    for i in range(length):
        text[:, i + 1] = torch.multinomial(table[text[:, i]].softmax(-1), 1, generator=g)[:, 0]
    logits = table[text[:, :-1]]
    best, where = logits.topk(KEEP, dim=-1)
    cached = torch.full_like(logits, -torch.inf).scatter(-1, where, best)
    return text, cached


class CausalConvBlock(nn.Module):
    def __init__(self, dim, kernel=3):
        super().__init__()
        self.pad = kernel - 1
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Conv1d(dim, 2 * dim, kernel)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        h = F.pad(self.norm(x).transpose(1, 2), (self.pad, 0))
        return x + self.out(F.glu(self.mix(h), dim=1).transpose(1, 2))


class Student(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(CHARS, dim)
        self.body = nn.Sequential(CausalConvBlock(dim), CausalConvBlock(dim))
        self.logits = nn.Linear(dim, CHARS)

    def forward(self, ids):
        return self.logits(self.body(self.embed(ids)))


def distillation(student_logits, cached):
    log_s = F.log_softmax(student_logits.float() / TEMPERATURE, -1)
    log_t = F.log_softmax(cached / TEMPERATURE, -1)
    p_t = log_t.exp()
    terms = torch.where(p_t > 0, p_t * (log_t - log_s), torch.zeros(()))
    return TEMPERATURE ** 2 * terms.sum(-1).mean()


class Distiller:
    def __init__(self):
        torch.manual_seed(5)
        self.text, self.cached = make_cache()
        self.student = Student()
        self.opt = torch.optim.Adam(self.student.parameters(), lr=6e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=12)
        self.micro = 2

    def update(self):
        self.opt.zero_grad()
        shown = 0.0
        for _ in range(self.micro):
            rows = torch.randint(len(self.text), (12,))
            ids, nxt = self.text[rows, :-1], self.text[rows, 1:]
            with torch.autocast("cpu", dtype=torch.float16):
                out = self.student(ids)
            hard = F.cross_entropy(out.float().flatten(0, 1), nxt.flatten())
            loss = (0.8 * distillation(out, self.cached[rows]) + 0.2 * hard) / self.micro
            self.scaler.scale(loss).backward()
            shown += loss.item()
        self.scaler.unscale_(self.opt)
        norm = nn.utils.clip_grad_norm_(self.student.parameters(), 2.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        return shown, norm.item()

    def fit(self, updates=34):
        for u in range(1, updates + 1):
            loss, norm = self.update()
            print(f"[{u:02d}] loss={loss:.5f} norm={norm:.4f} scale=2**{torch.tensor(self.scaler.get_scale()).log2().item():.0f}")
        total = sum(p.detach().square().sum().item() for p in self.student.parameters())
        print("student, sum of squares:", total)


if __name__ == "__main__":
    Distiller().fit()
