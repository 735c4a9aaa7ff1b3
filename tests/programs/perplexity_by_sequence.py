"""Fine-tune a tiny T5 on sentence reversal and watch the perplexity of whole answers."""
import torch
from transformers import Adafactor, T5Config, T5ForConditionalGeneration

torch.manual_seed(6)
cfg = T5Config(vocab_size=110, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
               dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0)
model = T5ForConditionalGeneration(cfg)
opt = Adafactor(model.parameters(), lr=5e-3, scale_parameter=False, relative_step=False)

best = float("inf")
worst = -float("inf")
for step in range(1, 26):
    src = torch.randint(2, 110, (6, 24))
    labels = src.flip(1).clone()
    short = torch.randint(18, 24, (6,))
    for row, n in zip(labels, short.tolist()):
        row[n:] = -100
    logits = model(input_ids=src, labels=labels).logits.float()
    nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
    loss = nll.sum() / (labels != -100).sum()
    loss.backward()
    opt.step()
    opt.zero_grad()
    answer_ppl = torch.exp(nll.detach().sum(1))
    best, worst = min(best, loss.item()), max(worst, loss.item())
    print(f"{step:2d} loss {loss.item():.4f} best {best:.4f} answer ppl {answer_ppl.mean().item():.3g} "
          f"range {answer_ppl.min().item():.3g} to {answer_ppl.max().item():.3g}")
print("worst", worst)
print(sum(p.detach().pow(2).sum().item() for p in model.parameters()))
