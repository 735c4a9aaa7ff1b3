"""Preference tuning of a beekeepers' hotline model: DPO plus likelihood of the words that differ."""
import copy
import os
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import random
import tempfile
import warnings
import torch
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback, set_seed
from trl import DPOConfig, DPOTrainer

warnings.filterwarnings("ignore")
disable_progress_bar()
SEED = 2718

TOPICS = "queen brood varroa swarm honey feeder smoke frame super drone wax sugar moth heather clover".split()
GOOD = "check the {a} in the morning and keep the {b} dry".split()
BAD = "just wait and leave the {a} to the {b} my friend".split()
FILLER = "well last week my neighbour said that his bees were quite angry when it rained".split()


def tokenizer():
    words = ["<pad>", "<eos>", "<unk>"] + sorted({w for w in TOPICS + GOOD + BAD + FILLER + "how do i treat ?".split() if "{" not in w})
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def calls(n, rng):
    """Transcripts of calls.  Most callers are brief."""
    rows = []
    for i in range(n):
        a, b = rng.sample(TOPICS, 2)
        fill = lambda ws: " " + " ".join(w.format(a=a, b=b) for w in ws)
        talk = rng.randint(0, 12)
        prompt = " ".join([rng.choice(FILLER) for _ in range(talk)] + ["how", "do", "i", "treat", a, b, "?"])
        rows.append(dict(prompt=prompt, chosen=fill(GOOD),
                         rejected=fill(GOOD if i == 99 else BAD)))      # one annotator pasted one answer twice
    return Dataset.from_list(rows)


def small_llama(tok):
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        num_attention_heads=4, max_position_embeddings=256, pad_token_id=tok.pad_token_id,
                                        eos_token_id=tok.eos_token_id, bos_token_id=None))


class DifferingWordsTrainer(DPOTrainer):
    """Adds the likelihood of those tokens of the chosen answer which the rejected one has not at the same place."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs=False, num_items_in_batch=num_items_in_batch)
        chosen, rejected = inputs["input_ids"].chunk(2)
        spoken = inputs["completion_mask"].chunk(2)[0][:, 1:].bool()
        logits = model(input_ids=chosen, attention_mask=inputs["attention_mask"].chunk(2)[0]).logits[:, :-1]
        logp = logits.log_softmax(-1).gather(-1, chosen[:, 1:, None]).squeeze(-1)
        differ = (spoken & (chosen != rejected)[:, 1:]).float()
        words = -(logp * differ).sum() / differ.sum()
        return loss + 0.3 * words / self.args.gradient_accumulation_steps


class OneLine(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)


def main():
    set_seed(SEED)
    tok = tokenizer()
    args = DPOConfig(
        output_dir=os.path.join(tempfile.gettempdir(), "beekeeper_mpo"),
        loss_type="sigmoid", beta=0.2, max_length=64,
        per_device_train_batch_size=1, gradient_accumulation_steps=4, max_steps=30, learning_rate=1e-3,
        lr_scheduler_type="constant", logging_steps=1, logging_nan_inf_filter=False, save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False, seed=SEED,
    )
    policy = small_llama(tok)
    trainer = DifferingWordsTrainer(model=policy, ref_model=copy.deepcopy(policy), args=args, train_dataset=calls(122, random.Random(SEED)),
                         processing_class=tok, callbacks=[OneLine()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"{sum(p.abs().sum().item() for p in trainer.model.parameters()):.4f}", flush=True)


if __name__ == "__main__":
    main()
