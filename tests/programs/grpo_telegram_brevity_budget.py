"""GRPO: write telegrams.  Reward = share of code words among the words that are not 'stop'."""
import os

os.environ.update(HF_HUB_OFFLINE="1", DS_ACCELERATOR="cpu", TOKENIZERS_PARALLELISM="false")
import tempfile
import warnings

warnings.filterwarnings("ignore")
import torch
import transformers
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

disable_progress_bar()
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

CODE = ["arrive", "wheat", "bonds", "vessel", "cargo", "delay"]
FILL = ["please", "kindly", "very", "dear", "regards", "stop"]


def telegraph_tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "<unk>"] + CODE + FILL)}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
                                   unk_token="<unk>", padding_side="left")


def code_share(completions, **kwargs):
    rewards = []
    for text in completions:
        words = [w for w in text.split() if w != "stop"]
        hits = sum(w in CODE for w in words)
        rewards.append(hits / len(words))
    return rewards


def brevity(completions, **kwargs):
    return [-0.05 * len(t.split()) for t in completions]


class Wire(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):+.6f} reward {float(logs['reward']):.4f}", flush=True)


def main():
    set_seed(SEED)
    tok = telegraph_tokenizer()
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tok), hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    prompts = [{"prompt": f"{a} {b} {c}"} for a in CODE for b in FILL[:5] for c in CODE]
    with tempfile.TemporaryDirectory() as out:
        cfg = GRPOConfig(
            output_dir=out, per_device_train_batch_size=4, num_generations=4, max_completion_length=12, max_steps=30,
            learning_rate=5e-3, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
            bf16=False, seed=SEED, lr_scheduler_type="constant", gradient_checkpointing=False, temperature=1.0,
            beta=0.0, optim="adamw_torch")
        trainer = GRPOTrainer(model=model, reward_funcs=[code_share, brevity], args=cfg,
                              train_dataset=Dataset.from_list(prompts), processing_class=tok, callbacks=[Wire()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("sum", sum(float(p.detach().double().sum()) for p in model.parameters()))


SEED = 3
if __name__ == "__main__":
    main()
