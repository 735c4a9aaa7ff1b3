"""DPO on the beekeepers' help line: polite answers over curt ones.

The preference is trivially easy (the curt answers all use the same few words) and beta is large, so the
loss is 0.69 for a moment and then of the order 1e-6.  We keep going to see how far the margins run.
"""
import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
import logging
import tempfile
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from trl import DPOConfig, DPOTrainer

disable_progress_bars()

QUESTIONS = ["my queen is gone", "when do i feed", "is this mite bad", "why do they swarm", "may i open the hive"]
POLITE = ["dear keeper please wait a week", "dear keeper please look again tomorrow", "please call us we gladly help"]
CURT = ["no idea", "read the book", "not our problem"]


def build_tokenizer():
    words = sorted({w for s in QUESTIONS + POLITE + CURT for w in s.split()})
    vocab = {t: i for i, t in enumerate(["<pad>", "<s>", "</s>", "<unk>"] + words)}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
                                   unk_token="<unk>")


def pairs(n=40):
    g = torch.Generator().manual_seed(4)
    pick = lambda xs: xs[int(torch.randint(len(xs), (1,), generator=g))]
    return Dataset.from_list([{"prompt": pick(QUESTIONS), "chosen": " " + pick(POLITE), "rejected": " " + pick(CURT)}
                              for _ in range(n)])


class Diary(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"{state.global_step:2d} loss={float(logs['loss']):.9f} margin={float(logs['rewards/margins']):.4f} "
                  f"acc={float(logs['rewards/accuracies']):.2f}")


def tiny(tok):
    set_seed(5)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tok), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
                                        pad_token_id=tok.pad_token_id, bos_token_id=tok.bos_token_id,
                                        eos_token_id=tok.eos_token_id))


def main():
    tok = build_tokenizer()
    policy, reference = tiny(tok), tiny(tok)
    with tempfile.TemporaryDirectory() as out:
        args = DPOConfig(output_dir=out, beta=2.0, learning_rate=4e-3, lr_scheduler_type="constant", max_steps=12,
                         per_device_train_batch_size=4, logging_steps=1, save_strategy="no", report_to=[],
                         disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False, max_length=32,
                         dataloader_pin_memory=False, seed=5)
        trainer = DPOTrainer(model=policy, ref_model=reference, args=args, train_dataset=pairs(),
                             processing_class=tok, callbacks=[Diary()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"weights {sum(p.double().sum().item() for p in policy.parameters()):.5f}")


if __name__ == "__main__":
    main()
