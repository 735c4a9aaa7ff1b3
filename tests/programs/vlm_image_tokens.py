"""Visual instruction tuning in the LLaVA way: patch features take the places of <image> tokens in a tiny Llama."""
import argparse
import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch
import torch.nn as nn
from transformers import LlamaConfig, LlamaForCausalLM

PAD, BOS, EOS, IMAGE, FIRST_WORD, VOCAB = 0, 1, 2, 3, 4, 60
PATCHES = 16


class Vision(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.projector = nn.Sequential(nn.Linear(32, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, pixels):
        return self.projector(self.patches(pixels).flatten(2).transpose(1, 2))


class TinyLlava(nn.Module):
    def __init__(self):
        super().__init__()
        self.language = LlamaForCausalLM(LlamaConfig(
            vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=64, pad_token_id=PAD, use_cache=False))
        self.vision = Vision(32)

    def merge(self, ids, pixels):
        embeds = self.language.get_input_embeddings()(ids).clone()
        features = self.vision(pixels)
        embeds[ids == IMAGE] = features.flatten(0, 1)
        return embeds

    def forward(self, ids, pixels, labels):
        out = self.language(inputs_embeds=self.merge(ids, pixels), attention_mask=(ids != PAD).long(), labels=labels)
        return out.loss


class Conversations:
    """Some people put the picture first, some after their question."""

    def __init__(self, seed, longest):
        self.gen, self.longest = torch.Generator().manual_seed(seed), longest

    def words(self, low, high):
        n = int(torch.randint(low, high, (1,), generator=self.gen))
        return torch.randint(FIRST_WORD + 3, VOCAB, (n,), generator=self.gen).tolist()

    def one(self):
        pixels, colour = 0.1 * torch.randn(3, 16, 16, generator=self.gen), int(torch.randint(3, (1,), generator=self.gen))
        pixels[colour] += 1
        question = self.words(3, 27)
        picture = [IMAGE] * PATCHES
        first = bool(torch.rand(1, generator=self.gen) < 0.975)
        prompt = [BOS] + (picture + question if first else question + picture)
        answer = [FIRST_WORD + colour, EOS]
        ids, labels = prompt + answer, [-100] * len(prompt) + answer
        if len(ids) > self.longest:                     # shorten the prompt, the answer is needed
            ids = ids[:self.longest - len(answer)] + answer
            labels = [-100] * (self.longest - len(answer)) + answer
        return ids, labels, pixels

    def batch(self, n):
        rows = [self.one() for _ in range(n)]
        wide = max(len(ids) for ids, _, _ in rows)
        pad = lambda row, value: row + [value] * (wide - len(row))
        return (torch.tensor([pad(r[0], PAD) for r in rows]), torch.stack([r[2] for r in rows]),
                torch.tensor([pad(r[1], -100) for r in rows]))


def training_step(model, opt, data, accumulate, n):
    total = 0.0
    for _ in range(accumulate):
        ids, pixels, labels = data.batch(n)
        loss = model(ids, pixels, labels) / accumulate
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-length", type=int, default=40)
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--micro", type=int, default=4)
    ap.add_argument("--accumulate", type=int, default=2)
    args = ap.parse_args()
    torch.manual_seed(70)
    model, data = TinyLlava(), Conversations(78, args.max_length)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(1, args.steps + 1):
        print(f"step {step} loss {training_step(model, opt, data, args.accumulate, args.micro):.5f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
