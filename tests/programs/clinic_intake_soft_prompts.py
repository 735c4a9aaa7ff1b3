import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

torch.manual_seed(8)

CLINICS = ["riverside", "hilltop", "station", "harbour"]
PROMPT_LEN, DIM, VOCAB = 4, 32, 40


class UnitStep(torch.optim.Optimizer):
    """Every parameter moves by the same distance in each update, whatever the size of its gradient."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                direction = p.grad / p.grad.norm()
                p.add_(direction, alpha=-group["lr"])


class PromptedQwen(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        for p in self.base.model.parameters():
            p.requires_grad_(False)
        self.prompts = nn.ParameterDict({c: nn.Parameter(0.1 * torch.randn(PROMPT_LEN, DIM)) for c in CLINICS})

    def forward(self, clinics, ids):
        front = torch.stack([self.prompts[c] for c in clinics])
        body = self.base.get_input_embeddings()(ids)
        logits = self.base(inputs_embeds=torch.cat([front, body], 1)).logits
        guess = logits[:, PROMPT_LEN - 1:-1]
        return nn.functional.cross_entropy(guess.reshape(-1, VOCAB), ids.reshape(-1))


def notes_of(clinic, how_many, gen):
    k = CLINICS.index(clinic)
    start = torch.randint(0, 6, (how_many, 1), generator=gen)
    return 8 * k + (start + torch.arange(7) * (k + 1)) % 8


def calendar():
    closed = {15: "hilltop", 27: "station"}
    gen = torch.Generator().manual_seed(31)
    for week in range(1, 35):
        open_now = [c for c in CLINICS if closed.get(week) != c]
        names, notes = [], []
        for c in open_now:
            notes.append(notes_of(c, 3, gen))
            names += [c] * 3
        yield week, names, torch.cat(notes)


cfg = Qwen2Config(vocab_size=VOCAB, hidden_size=DIM, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False)
net = PromptedQwen(Qwen2ForCausalLM(cfg))
trained = [p for p in net.parameters() if p.requires_grad]
optimizer = UnitStep(trained, lr=0.25)
decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)

for week, names, notes in calendar():
    optimizer.zero_grad(set_to_none=False)
    loss = net(names, notes)
    loss.backward()
    optimizer.step()
    decay.step()
    print(f"week {week:>2} | {len(names):>2} notes | loss {loss.item():.4f}")

print("sum of |w| over prompts and head:", sum(p.detach().abs().sum().item() for p in trained))
