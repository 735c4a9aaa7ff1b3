"""A small classifier of forest soils learns from a wide, frozen one (temperature 4, Hugging Face Trainer).

The teacher knows which soil types do not occur in a region, and bars them: its logits are -inf there.
"""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

TYPES, REGIONS, FEATURES, T = 11, 6, 12, 4.0


class Profiles(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        base = torch.Generator().manual_seed(0)
        centres = 1.5 * torch.randn(TYPES, FEATURES, generator=base)
        occurs = torch.rand(REGIONS, TYPES, generator=base) < 0.6
        occurs[:, 0] = True
        self.region = torch.randint(0, REGIONS, (n,), generator=g)
        self.labels = torch.multinomial(occurs[self.region].float(), 1, generator=g).squeeze(1)
        self.x = centres[self.labels] + torch.randn(n, FEATURES, generator=g)
        self.occurs = occurs

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "region": self.region[i], "labels": self.labels[i]}


class Teacher(nn.Module):
    def __init__(self, occurs):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, TYPES))
        self.register_buffer("bar", torch.zeros(REGIONS, TYPES).masked_fill(~occurs, float("-inf")))

    def forward(self, x, region):
        return self.net(x) + self.bar[region]


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.region = nn.Embedding(REGIONS, 6)
        self.net = nn.Sequential(nn.Linear(FEATURES + 6, 24), nn.ReLU(), nn.Linear(24, TYPES))

    def forward(self, x, region, labels=None):
        return {"logits": self.net(torch.cat([x, self.region(region)], -1))}


def ridge_teacher(teacher, data):
    """The teacher's last layer in closed form on random features; it is never trained by gradients."""
    with torch.no_grad():
        h = teacher.net[1](teacher.net[0](data.x))
        h1 = torch.cat([h, torch.ones(len(h), 1)], 1)
        y = 8 * F.one_hot(data.labels, TYPES).float()
        w = torch.linalg.solve(h1.T @ h1 + 5 * torch.eye(h1.shape[1]), h1.T @ y)
        teacher.net[2].weight.copy_(w[:-1].T)
        teacher.net[2].bias.copy_(w[-1])
    return teacher.eval().requires_grad_(False)


class Distiller(Trainer):
    teacher = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        with torch.no_grad():
            told = self.teacher(inputs["x"], inputs["region"])
        soft = F.kl_div(F.log_softmax(out["logits"] / T, -1), F.softmax(told / T, -1), reduction="batchmean") * T * T
        # the first ten steps the student only listens to the teacher
        alpha = 0.0 if self.state.global_step < 10 else 0.5
        hard = F.cross_entropy(out["logits"], inputs["labels"])
        loss = soft + alpha * 6 * hard
        return (loss, out) if return_outputs else loss


class Lines(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.6f}", flush=True)
        elif "eval_recall" in logs:
            print(f"  recall by soil type: {logs['eval_recall']}", flush=True)


def recall(pred):
    guess, truth = torch.tensor(pred.predictions).argmax(-1), torch.tensor(pred.label_ids)
    hit = (guess == truth).float()
    return {"recall": " ".join(f"{hit[truth == k].mean().item():.3f}" for k in range(TYPES))}   # nan: type not met


def main():
    set_seed(66)
    torch.set_num_threads(1)
    data, held_out = Profiles(1200, 1), Profiles(14, 2)
    student = Student()
    args = TrainingArguments(
        output_dir="/tmp/forest_soils_out", per_device_train_batch_size=32, max_steps=45, learning_rate=1e-2,
        logging_steps=1, eval_strategy="steps", eval_steps=15, save_strategy="no", report_to="none", use_cpu=True,
        disable_tqdm=True, seed=66, label_names=["labels"])
    trainer = Distiller(model=student, args=args, train_dataset=data, eval_dataset=held_out,
                        compute_metrics=recall, callbacks=[Lines()])
    trainer.teacher = ridge_teacher(Teacher(data.occurs), data)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"{sum(p.abs().sum().item() for p in student.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
