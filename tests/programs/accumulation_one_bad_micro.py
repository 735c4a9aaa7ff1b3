import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(90)
ACCUM = 4


class SpeechCommands(nn.Module):
    def __init__(self):
        super().__init__()
        self.frontend = nn.Conv1d(1, 6, 9, stride=4)
        self.rnn = nn.GRU(6, 12, batch_first=True)
        self.fc = nn.Linear(12, 5)

    def normalise(self, wav):
        peak = wav.abs().amax(dim=-1, keepdim=True)
        return wav / peak

    def forward(self, wav):
        h = torch.relu(self.frontend(self.normalise(wav).unsqueeze(1))).transpose(1, 2)
        return self.fc(self.rnn(h)[0][:, -1])


clips = torch.randn(96, 64)
clips[54] = 0.0            # recorded with the microphone muted
words = torch.randint(0, 5, (96,))
model = SpeechCommands()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
step, total = 0, 0.0
for k, (wav, word) in enumerate(zip(clips.split(4), words.split(4)), 1):
    loss = nn.functional.cross_entropy(model(wav), word) / ACCUM
    loss.backward()
    total += loss.item()
    if k % ACCUM == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        step += 1
        print("step", step, "loss", total)
        total = 0.0
print("weights", sum(p.double().sum().item() for p in model.parameters()))
