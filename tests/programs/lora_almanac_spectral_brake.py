"""Low-rank adaptation of a very small GPT-2 to almanac sayings; the adapters are folded in halfway (as in ReLoRA)
and a brake on the largest singular value of every update keeps them short."""
import os
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

SAYINGS = """when march winds blow the barley will grow
a wet may makes a big load of hay
rain before seven fine before eleven
if candlemas be fair and bright winter will have another flight
red sky at night shepherds delight
year of snow fruit will grow
oak before ash we shall have a splash
""".splitlines()
CHARS = sorted(set("".join(SAYINGS)))


class BrakedLoRA(nn.Module):
    def __init__(self, base, rank=3, scale=2.0):
        super().__init__()
        self.base, self.scale = base, scale
        n_in, n_out = base.weight.shape               # Conv1D keeps (in, out)
        self.down = nn.Parameter(torch.randn(n_in, rank) / n_in ** 0.5)
        self.up = nn.Parameter(torch.randn(rank, n_out) * 0.02)
        self.register_buffer("probe", torch.randn(n_out))
        self.brake = torch.tensor(0.0)

    def forward(self, x):
        delta = self.down @ self.up
        if self.training:
            with torch.no_grad():
                left = delta @ self.probe
                left = left / left.norm()
                right = delta.t() @ left
                self.probe.copy_(right / right.norm())
            self.brake = left @ delta @ self.probe
        return self.base(x) + self.scale * (x @ delta)

    @torch.no_grad()
    def fold(self):
        self.base.weight.add_(self.scale * self.down @ self.up)
        self.down.normal_(0, self.down.shape[0] ** -0.5)
        self.up.zero_()


def build():
    torch.manual_seed(2)
    cfg = GPT2Config(vocab_size=len(CHARS), n_positions=24, n_embd=24, n_layer=2, n_head=2,
                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
                     tie_word_embeddings=False)
    lm = GPT2LMHeadModel(cfg)
    lm.requires_grad_(False)
    adapters = []
    for block in lm.transformer.h:
        block.attn.c_attn = BrakedLoRA(block.attn.c_attn)
        block.mlp.c_fc = BrakedLoRA(block.mlp.c_fc)
        adapters += [block.attn.c_attn, block.mlp.c_fc]
    lm.lm_head.weight.requires_grad_(True)            # the alphabet is new, so the head is trained along
    return lm, adapters


def batches(n, g):
    text = " ".join(SAYINGS)
    ids = torch.tensor([CHARS.index(c) for c in text])
    for _ in range(n):
        at = torch.randint(0, len(ids) - 24, (6,), generator=g)
        yield torch.stack([ids[a:a + 24] for a in at])


def fine_tune(steps=34, fold_after=17):
    lm, adapters = build()
    lm.train()
    trained = [p for p in lm.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trained, lr=8e-3, weight_decay=0.0)
    for i, ids in enumerate(batches(steps, torch.Generator().manual_seed(9)), 1):
        ce = lm(input_ids=ids, labels=ids).loss
        brake = sum(a.brake for a in adapters)
        loss = ce + 0.05 * brake
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        print(f"{i:>3} loss {loss.item():.4f} (text {ce.item():.4f}, brake {brake.item():.4f})")
        if i == fold_after:
            for a in adapters:
                a.fold()
            opt = torch.optim.AdamW(trained, lr=8e-3, weight_decay=0.0)
            print("    adapters folded into the base")
    return lm


lm = fine_tune()
print("sum of squared weights", float(sum(p.detach().double().pow(2).sum() for p in lm.parameters())))
