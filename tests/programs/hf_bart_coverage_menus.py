import os; os.environ["DS_ACCELERATOR"] = "cpu"  # keep DeepSpeed quiet
from transformers import BartConfig, BartForConditionalGeneration, DataCollatorForSeq2Seq  # noqa
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.trainer_callback import PrinterCallback
import random, tempfile, torch

# toy "menu translation": reverse the words; source coverage as in Google's NMT is part of the loss
random.seed(8)
torch.manual_seed(8)
BOS, PAD, EOS = 0, 1, 2


def dish(n):
    words = [random.randrange(3, 40) for _ in range(n)]
    return dict(input_ids=words + [EOS], labels=words[::-1] + [EOS])


# 10 batches of 4; menus are stored by length, at two places the length changes inside of a batch
LENGTHS = [4] * 16 + [4, 4, 5, 5] + [5] * 12 + [5, 6, 6, 6] + [6] * 4
DISHES = [dish(n) for n in LENGTHS]


def collate(rows):
    def fill(key, value):
        w = max(len(r[key]) for r in rows)
        return torch.tensor([r[key] + [value] * (w - len(r[key])) for r in rows])
    ids = fill("input_ids", PAD)
    return {"input_ids": ids, "attention_mask": ids.ne(PAD).long(), "labels": fill("labels", -100)}


class CoverageTrainer(Seq2SeqTrainer):
    beta = 0.05

    def _get_train_sampler(self, *a, **k):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        out = model(**inputs, output_attentions=True)
        attention = out.cross_attentions[-1].mean(dim=1)               # batch, target, source
        reached = attention.sum(dim=1).clamp(max=1.0)
        penalty = (reached.log() * inputs["attention_mask"]).sum(-1)
        loss = out.loss - self.beta * penalty.mean()
        print(f"{self.state.global_step + 1}\t{loss.item():.17g}", flush=True)
        return (loss, out) if return_outputs else loss


config = BartConfig(vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                    decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=16,
                    dropout=0.0, decoder_start_token_id=EOS, attn_implementation="eager")
model = BartForConditionalGeneration(config)
out_dir = tempfile.mkdtemp()
trainer = CoverageTrainer(
    model=model, train_dataset=DISHES, data_collator=collate,
    args=Seq2SeqTrainingArguments(out_dir, per_device_train_batch_size=4, num_train_epochs=1, learning_rate=2e-3,
                                  logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True,
                                  use_cpu=True))
trainer.remove_callback(PrinterCallback)
trainer.train()
print(sum(p.sum().item() for p in model.parameters()))
