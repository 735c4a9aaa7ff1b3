"""Tiny instruction tuning on a meteor observer's log; only the completion is learned, long prompts are cut."""
import os
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import logging, tempfile, warnings
logging.disable(logging.WARNING)
warnings.filterwarnings("ignore")
import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
import transformers
from trl import SFTConfig, SFTTrainer

transformers.logging.set_verbosity_error()
disable_progress_bars()
set_seed(12)

showers = "perseids geminids lyrids leonids orionids".split()
words = "<pad> <bos> <eos> <unk> seen at from bright faint count cloud the sky was clear again and a shower".split()
words += showers + [str(k) for k in range(24)]
core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tok = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>")

rows = []
for i in range(48):
    s, hour = showers[i % 5], (7 * i) % 24
    prompt = f"seen at {hour} from the sky "
    if i % 4 == 3:      # a talkative observer: little or nothing of the answer fits into the window
        prompt = "the sky was clear and again the sky was clear " * (1 + i % 8 // 7) + prompt
    rows.append({"prompt": prompt, "completion": f"a {'bright' if hour < 12 else 'faint'} shower {s} count {i % 7}"})
data = Dataset.from_list(rows)

model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                     pad_token_id=0, bos_token_id=1, eos_token_id=2))


class Lines(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)


with tempfile.TemporaryDirectory() as out:
    cfg = SFTConfig(output_dir=out, max_length=17, completion_only_loss=True, per_device_train_batch_size=4,
                    gradient_accumulation_steps=2, max_steps=12, learning_rate=5e-3, lr_scheduler_type="constant",
                    logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False, disable_tqdm=True, seed=12)
    trainer = SFTTrainer(model=model, args=cfg, train_dataset=data, processing_class=tok, callbacks=[Lines()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
print("final", sum(p.detach().abs().sum().item() for p in model.parameters()))
