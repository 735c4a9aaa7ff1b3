import random

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import LlamaConfig, LlamaForCausalLM

SEASONS = [
    (["cod", "haddock", "pollack"], ["north", "bank"], 14),
    (["cod", "haddock", "mackerel", "herring", "sprat"], ["north", "shelf", "fjord"], 12),
    (["mackerel", "squid", "tusk", "ling", "redfish", "cod"], ["shelf", "ridge", "trench", "fjord"], 12),
]
FILLER = ["<pad>", "hauled", "boxes", "of", "at", "wind", "force", "."] + [str(n) for n in range(1, 9)]


class Vocabulary:
    def __init__(self, words):
        self.index = {w: i for i, w in enumerate(words)}

    def learn(self, words):
        for w in words:
            self.index.setdefault(w, len(self.index))

    def __len__(self):
        return len(self.index)

    def encode(self, words):
        return [self.index[w] for w in words]


def write_entry(rng, fish, grounds):
    f = rng.choice(fish)
    g = grounds[len(f) % len(grounds)]
    n = str(rng.randint(1, 8))
    return ["hauled", n, "boxes", "of", f, "at", g, "wind", "force", str(1 + int(n) // 2), "."]


def lm_loss(model, ids, known):
    logits = model(input_ids=ids).logits.float()
    unused = torch.arange(logits.shape[-1]) >= known
    logits = logits.masked_fill(unused, float("-inf"))
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def season_of_logs(accelerator, model, vocab, rng, season, length, first):
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, k / 3))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    best = float("inf")
    for step in range(first, first + length):
        ids = torch.tensor([vocab.encode(write_entry(rng, *season)) for _ in range(12)])
        loss = lm_loss(model, ids, len(vocab))
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        best = min(best, loss.item())
        accelerator.print(f"step {step} loss {loss.item():.4f} rows {model.config.vocab_size}")
    return best


def main():
    set_seed(21)
    rng = random.Random(21)
    accelerator = Accelerator(cpu=True)
    vocab = Vocabulary(FILLER)
    vocab.learn(SEASONS[0][0] + SEASONS[0][1])
    config = LlamaConfig(vocab_size=24, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=2, max_position_embeddings=16, tie_word_embeddings=True,
                         pad_token_id=0, bos_token_id=None, eos_token_id=None)
    model = LlamaForCausalLM(config)
    step = 1
    for number, (fish, grounds, length) in enumerate(SEASONS):
        vocab.learn(fish + grounds)
        if len(vocab) > model.config.vocab_size:
            model.resize_token_embeddings(len(vocab), pad_to_multiple_of=16, mean_resizing=False)
        best = season_of_logs(accelerator, model, vocab, rng, (fish, grounds), length, step)
        step += length
        accelerator.print(f"season {number} best {best:.4f} words {len(vocab)}")
    total = sum(p.detach().double().pow(2).sum().item() for p in model.parameters())
    accelerator.print(f"weights squared {total:.5f}")


if __name__ == "__main__":
    main()
