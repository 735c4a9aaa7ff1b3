"""Caption decoder trained with scheduled sampling: its own nucleus samples are fed back more and more often."""
import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS, VOCAB = 0, 1, 2, 40
torch.manual_seed(21)


def nucleus(logits, p=0.8):
    """Everything outside the smallest set with mass p gets probability zero."""
    order = logits.argsort(-1, descending=True)
    sorted_logits = logits.gather(-1, order)
    mass = sorted_logits.softmax(-1).cumsum(-1)
    drop = mass - sorted_logits.softmax(-1) > p
    sorted_logits = sorted_logits.masked_fill(drop, float("-inf"))
    return torch.full_like(logits, float("-inf")).scatter(-1, order, sorted_logits)


class Captioner(nn.Module):
    def __init__(self, image_dim=16, hidden=48):
        super().__init__()
        self.start = nn.Linear(image_dim, 2 * hidden)
        self.words = nn.Embedding(VOCAB, 24, padding_idx=PAD)
        self.cell = nn.LSTMCell(24, hidden)
        self.out = nn.Linear(hidden, VOCAB)
        ban = torch.zeros(VOCAB)
        ban[PAD] = ban[BOS] = float("-inf")     # never to be said
        self.register_buffer("ban", ban)

    def forward(self, image, gold, own_share):
        h, c = self.start(image).tanh().chunk(2, -1)
        word = torch.full((len(image),), BOS)
        scores = []
        for t in range(gold.size(1)):
            h, c = self.cell(self.words(word), (h, c))
            logits = self.out(h) + self.ban
            scores.append(logits)
            with torch.no_grad():
                said = torch.multinomial(nucleus(logits).softmax(-1), 1).squeeze(1)
                own = torch.rand(len(image)) < own_share
            word = torch.where(own, said, gold[:, t])
        return torch.stack(scores, 1)


def captions(n):
    topic = torch.randint(0, 6, (n,))
    image = F.one_hot(topic, 16).float() + 0.2 * torch.randn(n, 16)
    length = torch.randint(3, 9, (n,))
    gold = torch.full((n, 9), PAD)
    for i in range(n):
        for t in range(int(length[i])):
            gold[i, t] = 3 + (topic[i] * 5 + t) % (VOCAB - 3)
        gold[i, length[i]] = EOS
    return image, gold


model = Captioner()
opt = torch.optim.RMSprop(model.parameters(), lr=3e-3)
sched = torch.optim.lr_scheduler.StepLR(opt, 15, 0.5)
best_word = float("-inf")
for step in range(40):
    image, gold = captions(24)
    logits = model(image, gold, own_share=step / 60)
    loss = F.cross_entropy(logits.flatten(0, 1), gold.flatten(), ignore_index=PAD)
    opt.zero_grad()
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    opt.step()
    sched.step()
    best_word = max(best_word, logits.log_softmax(-1).max().item())
    print(f"{step + 1:02d} xent {loss.item():.5f} |g| {grad_norm.item():.4f} surest word {best_word:.4f}")
print("finite", int(all(p.isfinite().all() for p in model.parameters())))
