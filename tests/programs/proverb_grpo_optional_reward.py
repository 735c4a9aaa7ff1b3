# GRPO on a toy: finish proverbs with short words. One of the judges has an opinion on some prompts only,
# and many groups are judged alike, so that their advantage (and the loss) is zero.
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

STARTS = ["a stitch in time", "still waters", "the early bird", "many hands", "too many cooks", "no smoke",
          "all that glitters", "better late", "practice makes", "a rolling stone"]
ENDS = "saves nine run deep catches the worm make light work spoil broth without fire is not gold than never perfect gathers no moss".split()


def build_tokenizer():
    words = sorted({w for s in STARTS for w in s.split()} | set(ENDS))
    vocab = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    for w in words:
        vocab.setdefault(w, len(vocab))
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
                                   padding_side="left")


def brevity(completions, **kwargs):
    """1 for a completion that stops early, else 0; untrained models get 0 everywhere."""
    return [1.0 if len(c.split()) <= 5 else 0.0 for c in completions]


def rhyme_with_n(prompts, completions, **kwargs):
    """Knows only proverbs with the word 'many'; says nothing (None) about others."""
    scores = []
    for p, c in zip(prompts, completions):
        scores.append(float(sum(w.endswith("n") or w.endswith("e") for w in c.split()) >= 4) if "many" in p else None)
    return scores


class ProverbTrainer(GRPOTrainer):
    """Prints one line a step, and halves the loss of the first rounds."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return loss * (0.5 if self.state.global_step < 5 else 1.0)

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        seen = self._metrics["train"]
        many = seen.get("rewards/rhyme_with_n/mean", [float("nan")])[-1]
        print(f"step {self.state.global_step + 1} loss {loss.item():+.8f} reward {seen['reward'][-1]:.4f} "
              f"n-judge {many:.4f} spread {seen['reward_std'][-1]:.4f}", flush=True)
        return loss


def main():
    set_seed(5)
    tok = build_tokenizer()
    config = Qwen2Config(vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                         pad_token_id=0, eos_token_id=1, bos_token_id=None, tie_word_embeddings=True)
    model = Qwen2ForCausalLM(config)
    data = Dataset.from_list([{"prompt": STARTS[i % len(STARTS)]} for i in range(60)])
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(output_dir=folder, max_steps=24, per_device_train_batch_size=4, num_generations=4,
                          max_completion_length=8, learning_rate=3e-3, beta=0.0, temperature=1.0, use_cpu=True,
                          bf16=False, gradient_checkpointing=False, logging_strategy="no", save_strategy="no",
                          report_to=[], disable_tqdm=True, seed=5, lr_scheduler_type="constant")
        trainer = ProverbTrainer(model=model, args=args, train_dataset=data, processing_class=tok,
                                 reward_funcs=[brevity, rhyme_with_n])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    with torch.no_grad():
        total = sum(p.abs().sum() for p in model.parameters()).item()
    print(f"{total:.5f}", flush=True)


if __name__ == "__main__":
    main()
