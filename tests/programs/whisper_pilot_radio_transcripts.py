import random
import sys
import tempfile

sys.modules["deepspeed"] = sys.modules["bitsandbytes"] = None    # not needed here and slow to import

import torch
from torch.utils.data import Dataset
from transformers import (
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    WhisperConfig,
    WhisperForConditionalGeneration,
    set_seed,
)

MELS, FRAMES, TARGET = 8, 40, 16
WORDS = ["roger", "climb", "descend", "level", "runway", "cleared", "wind", "knots", "heading", "tower", "hold", "short"]
BOS, EOS, PAD = 1, 2, 0


def spell(rng, words):
    return [3 + rng.randrange(len(WORDS)) for _ in range(words)]


class RadioCalls(Dataset):
    def __init__(self, count):
        rng = random.Random(118)
        gen = torch.Generator().manual_seed(121)
        shape = torch.randn(len(WORDS) + 3, MELS, generator=gen)
        self.calls = []
        for n in range(count):
            words = rng.randint(4, 12)
            if n == 66:
                words = 19          # a full weather report, read out in one breath
            text = spell(rng, words)
            mel = 0.3 * torch.randn(MELS, FRAMES, generator=gen)
            for place, token in enumerate(text):
                mel[:, 2 * place:2 * place + 2] += shape[token][:, None]
            self.calls.append({"input_features": mel, "labels": text + [EOS]})

    def __len__(self):
        return len(self.calls)

    def __getitem__(self, index):
        return self.calls[index]


class SpeechCollator:
    def __call__(self, features):
        longest = max(len(f["labels"]) for f in features)
        labels = torch.full((len(features), longest), -100)
        for row, f in zip(labels, features):
            row[:len(f["labels"])] = torch.tensor(f["labels"])
        return {"input_features": torch.stack([f["input_features"] for f in features]), "labels": labels}


class SequentialSpeech(Seq2SeqTrainer):
    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Console(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"update {state.global_step}: loss {logs['loss']:.4f}", flush=True)


def main():
    set_seed(3)
    config = WhisperConfig(vocab_size=len(WORDS) + 3, num_mel_bins=MELS, encoder_layers=1, decoder_layers=1,
                           encoder_attention_heads=2, decoder_attention_heads=2, d_model=32, encoder_ffn_dim=64,
                           decoder_ffn_dim=64, max_source_positions=FRAMES // 2, max_target_positions=TARGET,
                           decoder_start_token_id=BOS, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD,
                           suppress_tokens=None, begin_suppress_tokens=None, dropout=0.0)
    model = WhisperForConditionalGeneration(config)
    args = Seq2SeqTrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=30,
                                    learning_rate=4e-3, warmup_steps=3, logging_steps=1, save_strategy="no",
                                    report_to=[], disable_tqdm=True, use_cpu=True, remove_unused_columns=False)
    trainer = SequentialSpeech(model=model, args=args, train_dataset=RadioCalls(120), data_collator=SpeechCollator(),
                               callbacks=[Console()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("weights", sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
