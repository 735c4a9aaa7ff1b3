"""CTC fine-tuning of a small wav2vec2 on announcements of tram stops (synthetic voice)."""

import math

import torch
import torch.nn.functional as F
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC
from transformers.utils import logging

logging.set_verbosity_error()

CONFIG = {
    "steps": 24,
    "batch": 3,
    "lr": {"head": 8e-3, "encoder": 1e-3},
    "letters": " abcdefghijklmnopqrst",  # index 0 is the blank
    "rate": 1600,
}


def voice(text, frames_per_letter, gen):
    """Every letter a tone of its own."""
    parts = []
    for letter in text:
        freq = 90 + 30 * letter
        t = torch.arange(frames_per_letter) / CONFIG["rate"]
        parts.append(torch.sin(2 * math.pi * freq * t))
    wave = torch.cat(parts)
    wave = wave + 0.05 * torch.randn(len(wave), generator=gen)
    return (wave - wave.mean()) / (wave.std() + 1e-7)


def announcements(gen):
    n = len(CONFIG["letters"])
    step = 0
    while True:
        waves, texts = [], []
        for k in range(CONFIG["batch"]):
            text = torch.randint(1, n, (6,), generator=gen).tolist()
            # one driver in a hurry per five steps: clip too short for its text
            hasty = k == 1 and step % 5 == 3
            waves.append(voice(text, 20 if hasty else 120, gen))
            texts.append(text)
        longest = max(map(len, waves))
        yield (
            torch.stack([F.pad(w, (0, longest - len(w))) for w in waves]),
            torch.stack([torch.arange(longest) < len(w) for w in waves]).long(),
            torch.tensor(texts),
        )
        step += 1


def raw_ctc(model, logits, mask, labels):
    """CTC without zero_infinity, only to see how many clips are unalignable."""
    frames = model._get_feat_extract_output_lengths(mask.sum(-1))
    logp = F.log_softmax(logits.detach(), -1).transpose(0, 1)
    return F.ctc_loss(logp, labels, frames, torch.full((len(labels),), labels.size(1)), reduction="none")


def build():
    model = Wav2Vec2ForCTC(
        Wav2Vec2Config(
            vocab_size=len(CONFIG["letters"]),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            conv_dim=(16, 16, 16),
            conv_kernel=(8, 4, 4),
            conv_stride=(5, 4, 2),
            num_feat_extract_layers=3,
            feat_extract_norm="layer",
            do_stable_layer_norm=True,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            mask_time_prob=0.0,
            layerdrop=0.0,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            feat_proj_dropout=0.0,
            final_dropout=0.0,
            pad_token_id=0,
            ctc_loss_reduction="sum",
            ctc_zero_infinity=True,
        )
    )
    model.freeze_feature_encoder()
    return model.train()


def main():
    torch.manual_seed(303)
    model = build()
    head = list(model.lm_head.parameters())
    body = [p for n, p in model.named_parameters() if p.requires_grad and not n.startswith("lm_head")]
    opt = torch.optim.AdamW(
        [{"params": head, "lr": CONFIG["lr"]["head"]}, {"params": body, "lr": CONFIG["lr"]["encoder"]}]
    )
    stream = announcements(torch.Generator().manual_seed(9))
    for step in range(1, CONFIG["steps"] + 1):
        wave, mask, labels = next(stream)
        out = model(wave, attention_mask=mask, labels=labels)
        opt.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(head + body, 5.0)
        opt.step()
        each = raw_ctc(model, out.logits, mask, labels)
        print(
            f"stop {step:02d} ctc {out.loss.item():10.5f} raw mean {each.mean().item():.4f} "
            f"unalignable {int(torch.isinf(each).sum())}"
        )
    print("weights", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
