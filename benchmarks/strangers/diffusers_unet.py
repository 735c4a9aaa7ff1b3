"""A denoising network is trained with accelerate: MATERIAL makes it, MATERIAL OUT trains it."""

import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel

torch.manual_seed(7)
place = f"{sys.argv[1]}/unet"
if len(sys.argv) == 2:
    UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    ).save_pretrained(place)  # fmt: skip
    sys.exit()

accelerator = Accelerator(gradient_accumulation_steps=2)
model = UNet2DModel.from_pretrained(place)
average = EMAModel(model.parameters())
noise_schedule = DDPMScheduler(num_train_timesteps=100)
images = torch.rand(64, 1, 8, 8) * 2 - 1
loader = torch.utils.data.DataLoader(images, batch_size=4, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, len(loader))
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for clean in loader:
    with accelerator.accumulate(model):
        noise = torch.randn_like(clean)
        times = torch.randint(0, 100, (len(clean),))
        predicted = model(noise_schedule.add_noise(clean, noise, times), times, return_dict=False)[0]
        loss = F.mse_loss(predicted, noise)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        average.step(model.parameters())
        print(f"loss {loss.item():.6f}")
accelerator.unwrap_model(model).save_pretrained(sys.argv[2])
