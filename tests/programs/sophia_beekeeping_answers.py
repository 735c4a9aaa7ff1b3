import sys
import tempfile

for unused in ("deepspeed", "bitsandbytes"):
    sys.modules[unused] = None

import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

disable_progress_bars()

SEASONS = ["march", "may", "july", "september"]
TOPICS = ["swarm", "mites", "honey", "queen", "feeding"]
ADVICE = {"swarm": "add a box", "mites": "treat with acid", "honey": "wait until capped", "queen": "look for eggs",
          "feeding": "give thin syrup"}
RESERVED = ["<pad>", "<eos>", "<unk>", "<user>", "<keeper>", "<tool>"]


def tokenizer():
    words = set(SEASONS + TOPICS + ["what", "about", "in", "?"])
    for text in ADVICE.values():
        words.update(text.split())
    vocab = {w: i for i, w in enumerate(RESERVED + sorted(words))}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def questions():
    rows = []
    for k in range(160):
        topic, season = TOPICS[k % 5], SEASONS[(k // 5) % 4]
        rows.append({"prompt": f"what about {topic} in {season} ?", "completion": " " + ADVICE[topic]})
    return Dataset.from_list(rows)


class Sophia(torch.optim.Optimizer):
    """Momentum over a running curvature (squared gradients), refreshed every `every` steps; sign steps before that."""

    def __init__(self, params, lr=3e-3, betas=(0.9, 0.95), rho=0.05, every=10):
        super().__init__(params, dict(lr=lr, betas=betas, rho=rho, every=every))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["t"], s["m"], s["h"] = 0, torch.zeros_like(p), None
                s["t"] += 1
                s["m"].lerp_(p.grad, 1 - b1)
                if s["t"] % group["every"] == 0:
                    h = torch.zeros_like(p) if s["h"] is None else s["h"]
                    s["h"] = b2 * h + (1 - b2) * p.grad * p.grad
                if s["h"] is None:
                    move = s["m"].sign()
                else:
                    move = (s["m"] / (group["rho"] * s["h"])).clamp(-1, 1)
                p.sub_(group["lr"] * move)


class Report(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"{state.global_step:>3} loss={logs['loss']:.4f} norm={logs['grad_norm']:.4f}")


if __name__ == "__main__":
    set_seed(14)
    tok = tokenizer()
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32,
                                         pad_token_id=tok.pad_token_id, bos_token_id=None, eos_token_id=tok.eos_token_id))
    optimizer = Sophia(model.parameters())
    steady = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    args = SFTConfig(output_dir=tempfile.mkdtemp(), max_steps=28, per_device_train_batch_size=4, logging_steps=1,
                     logging_nan_inf_filter=False, save_strategy="no", report_to="none", disable_tqdm=True,
                     use_cpu=True, bf16=False, gradient_checkpointing=False, max_length=24)
    trainer = SFTTrainer(model=model, args=args, train_dataset=questions(), processing_class=tok,
                         optimizers=(optimizer, steady), callbacks=[Report()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("squared norm of all weights", sum(p.detach().pow(2).sum().item() for p in trainer.model.parameters()))
