import torch
from accelerate import Accelerator
from torch.nn import functional as F
from transformers import T5Config, T5ForConditionalGeneration

PAD, EOS, VOCAB = 0, 1, 26
ROUNDS = 36


class JudgedHeadlines:
    """Race reports with a headline each, and what the night editor thought of it (0 to 10)."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self, n):
        report = torch.randint(2, VOCAB, (n, 8), generator=self.gen)
        good = torch.rand(n, 3, generator=self.gen) < 0.6
        strays = torch.randint(2, VOCAB, (n, 3), generator=self.gen)
        words = torch.where(good, report[:, :3], strays)
        rating = 2.0 + 2.4 * good.sum(1) + 0.3 * torch.randn(n, generator=self.gen)
        end = torch.full((n, 1), EOS)
        return report, torch.cat([words, end], 1), rating


def sharpness(done):
    """Temperature of the weights: soft at first, then more and more decided."""
    return 4.0 * 0.82 ** done


def headline_nll(model, report, headline):
    logits = model(input_ids=report, labels=headline).logits
    nll = F.cross_entropy(logits.transpose(1, 2), headline, reduction="none")
    return nll.sum(1)


def main():
    torch.manual_seed(6)
    accelerator = Accelerator(cpu=True)
    config = T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_decoder_layers=1, num_heads=4,
                      dropout_rate=0.0, decoder_start_token_id=PAD)
    model = T5ForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    data = JudgedHeadlines(77)
    baseline = None
    for done in range(ROUNDS):
        report, headline, rating = data.batch(24)
        mean = rating.mean().item()
        baseline = mean if baseline is None else 0.9 * baseline + 0.1 * mean
        weight = ((rating - baseline) / sharpness(done)).exp()
        nll = headline_nll(model, report, headline)
        loss = (weight * nll).sum() / weight.sum()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"round {done + 1:2d} temperature {sharpness(done):.4f} loss {loss.item():.4f} "
                          f"plain {nll.mean().item():.4f}")
    accelerator.print("squared weights", sum(p.detach().square().sum().item() for p in model.parameters()))


main()
