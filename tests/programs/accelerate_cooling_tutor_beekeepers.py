# Distil a wide "tutor" into a narrow pupil on beekeepers' diaries.
# The tutor's softmax is cooled over the run so that the pupil ends up imitating its arg-max.
import os
os.environ["HF_HUB_OFFLINE"] = "1"
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, set_seed


@dataclass
class Plan:
    steps: int = 40
    batch: int = 4
    length: int = 20
    t_hot: float = 4.0
    t_cold: float = 0.02
    alpha: float = 0.7
    lr: float = 2e-3
    seed: int = 4242

    def temperature(self, step):
        frac = step / (self.steps - 1)
        return self.t_hot * (self.t_cold / self.t_hot) ** frac


TEXT = ("opened hive three, brood on five frames, queen seen. fed two pints of syrup. "
        "swarm took to the pear tree; hived it in a skep by dusk. wasps at the entrance, narrowed it. "
        "heather honey slow to run, pressed the combs. mites counted: twelve on the board. ") * 6


class Diaries(Dataset):
    def __init__(self, text, length):
        chars = sorted(set(text))
        self.vocab = len(chars)
        table = {c: i for i, c in enumerate(chars)}
        ids = torch.tensor([table[c] for c in text])
        self.rows = ids.unfold(0, length, 7)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def llama(vocab, width, layers, spread):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, initializer_range=spread,
        pad_token_id=None, bos_token_id=None, eos_token_id=None))


class Distiller:
    def __init__(self, tutor, alpha):
        self.tutor = tutor.eval().requires_grad_(False)
        self.alpha = alpha

    def __call__(self, pupil, ids, temperature):
        with torch.no_grad():
            soft = F.softmax(self.tutor(ids).logits[:, :-1] / temperature, dim=-1)
        logits = pupil(ids).logits[:, :-1]
        logq = F.log_softmax(logits, dim=-1)
        hard = F.nll_loss(logq.flatten(0, 1), ids[:, 1:].flatten())
        # kl(soft || q); no T**2 here, only the tutor is cooled
        kl = (soft * (soft.log() - logq)).sum(-1).mean()
        return self.alpha * kl + (1 - self.alpha) * hard, kl.detach(), hard.detach()


def forever(loader):
    while True:
        yield from loader


def main(plan=Plan()):
    set_seed(plan.seed)
    acc = Accelerator(cpu=True)
    data = Diaries(TEXT, plan.length)
    tutor = llama(data.vocab, 64, 2, spread=0.25)
    pupil = llama(data.vocab, 24, 1, spread=0.05)
    loader = DataLoader(data, plan.batch, shuffle=True, generator=torch.Generator().manual_seed(plan.seed))
    opt = torch.optim.AdamW(pupil.parameters(), lr=plan.lr)
    tutor, pupil, opt, loader = acc.prepare(tutor, pupil, opt, loader)
    distil = Distiller(tutor, plan.alpha)

    pupil.train()
    batches = forever(loader)
    for step in range(plan.steps):
        t = plan.temperature(step)
        loss, kl, hard = distil(pupil, next(batches), t)
        acc.backward(loss)
        acc.clip_grad_norm_(pupil.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        acc.print(f"{step + 1:3d} T={t:.4f} loss={loss.item():.6f} kl={kl.item():.5f} ce={hard.item():.5f}")

    acc.print("pupil checksum:", round(sum(float(p.double().sum()) for p in pupil.parameters()), 6))


main()
