"""Product recall notices -> hazard class; crowd labels are noisy, so the Trainer's loss is
replaced by the generalised cross entropy of Zhang & Sabuncu (NeurIPS 2018), q = 0.7."""
import os
import tempfile

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import torch
from torch.utils.data import Dataset, SequentialSampler
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.modeling_outputs import SequenceClassifierOutput

set_seed(21)
VOCAB, CLASSES = 50, 4


class Notices(Dataset):
    """Raw word counts.  Notice 101 is a whole scanned catalogue, not a one-page notice."""

    def __init__(self, n=240):
        g = torch.Generator().manual_seed(8)
        topic = torch.softmax(2 * torch.randn(CLASSES, VOCAB, generator=g), -1)
        y = torch.randint(CLASSES, (n,), generator=g)
        words = torch.full((n,), 30)
        words[101] = 60_000
        self.x = torch.stack([
            torch.bincount(torch.multinomial(topic[c], int(w), replacement=True, generator=g), minlength=VOCAB).float()
            for c, w in zip(y, words)])
        flip = torch.rand(n, generator=g) < 0.15
        flip[101] = True
        self.y = torch.where(flip, (y + 1) % CLASSES, y)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"counts": self.x[i], "labels": self.y[i]}


class BagConfig(PretrainedConfig):
    model_type = "bag"


class BagOfWords(PreTrainedModel):
    config_class = BagConfig

    def __init__(self, config):
        super().__init__(config)
        self.hidden = torch.nn.Linear(VOCAB, 24)
        self.classifier = torch.nn.Linear(24, CLASSES)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=0.1)
            torch.nn.init.zeros_(module.bias)

    def forward(self, counts, labels=None):
        return SequenceClassifierOutput(logits=self.classifier(torch.relu(self.hidden(counts))))


class RobustTrainer(Trainer):
    q = 0.7

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        p = out.logits.softmax(-1).gather(1, labels[:, None]).squeeze(1)
        loss = ((1 - p ** self.q) / self.q).mean()
        return (loss, out) if return_outputs else loss

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


class Lines(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.6f}", flush=True)


with tempfile.TemporaryDirectory() as tmp:
    model = BagOfWords(BagConfig())
    args = TrainingArguments(
        output_dir=tmp, per_device_train_batch_size=8, num_train_epochs=1, learning_rate=2e-2, warmup_steps=3,
        logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=21)
    trainer = RobustTrainer(model=model, args=args, train_dataset=Notices(), callbacks=[Lines()])
    trainer.remove_callback(__import__("transformers").PrinterCallback)
    trainer.train()
    print("final", sum(p.detach().abs().sum().item() for p in model.parameters()))
