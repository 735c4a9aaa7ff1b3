"""A tiny MiniCPM-V: a SigLIP tower, a resampler with a few learned queries, and a Qwen2 language model.

The module names (`vpm`, `resampler`, `llm`) are those of MiniCPM-V 2.6, so that its scripts' flags mean the same here.
"""

import torch
from torch import nn
from torch.func import functional_call
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, SiglipVisionConfig, SiglipVisionModel
from transformers.generation import GenerationMixin


class MiniCPMVConfig(Qwen2Config):
    model_type = "minicpmv"

    vision_config: dict | SiglipVisionConfig | None = None
    query_num: int = 4
    image_token_id: int = 0

    def __post_init__(self, **kwargs):
        if not isinstance(self.vision_config, SiglipVisionConfig):
            self.vision_config = SiglipVisionConfig(**(self.vision_config or {}))
        super().__post_init__(**kwargs)


class Resampler(nn.Module):
    """Queries attend to the patches of one image: [batch, patches, vision] -> [batch, queries, hidden]."""

    def __init__(self, queries, hidden, vision, heads):
        super().__init__()
        self.query = nn.Parameter(0.02 * torch.randn(queries, hidden))
        self.kv_proj = nn.Linear(vision, hidden, bias=False)
        self.ln_q, self.ln_kv, self.ln_post = nn.LayerNorm(hidden), nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attn = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, patches):
        kv = self.ln_kv(self.kv_proj(patches))
        q = self.ln_q(self.query).expand(len(patches), -1, -1)
        return self.proj(self.ln_post(self.attn(q, kv, kv, need_weights=False)[0]))


class MiniCPMV(PreTrainedModel, GenerationMixin):
    config_class = MiniCPMVConfig
    base_model_prefix = "llm"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _no_split_modules = ["Qwen2DecoderLayer", "SiglipEncoderLayer"]

    def __init__(self, config):
        super().__init__(config)
        attention = config._attn_implementation or "eager"
        self.llm = Qwen2ForCausalLM._from_config(config, attn_implementation=attention)
        self.vpm = SiglipVisionModel._from_config(config.vision_config, attn_implementation=attention)
        vision = config.vision_config
        self.resampler = Resampler(config.query_num, config.hidden_size, vision.hidden_size, config.num_attention_heads)
        self.float32_modules = ()
        self.post_init()

    def get_input_embeddings(self):
        return self.llm.get_input_embeddings()

    def get_output_embeddings(self):
        return self.llm.lm_head

    def forward(self, input_ids=None, pixel_values=None, attention_mask=None, labels=None, inputs_embeds=None, **kwargs):
        """`pixel_values` [images, 3, side, side]; the images fill the slots `image_token_id` in order."""
        if inputs_embeds is None:
            inputs_embeds = self.llm.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            patches = self.see(pixel_values)
            images = self.resampler(patches.to(self.resampler.query.dtype))
            slots = (input_ids == self.config.image_token_id).unsqueeze(-1).expand_as(inputs_embeds)
            inputs_embeds = inputs_embeds.masked_scatter(slots, images.to(inputs_embeds.dtype))
        return self.llm(inputs_embeds=inputs_embeds, attention_mask=attention_mask, labels=labels, **kwargs)

    def see(self, pixel_values):
        """The tower's last hidden state; in float32 whatever dtype its weights are held in, if it is asked to be."""
        if "vpm" not in self.float32_modules:
            return self.vpm(pixel_values.to(self.vpm.dtype)).last_hidden_state
        weights = {name: weight.float() for name, weight in self.vpm.named_parameters()}
        with torch.autocast(pixel_values.device.type, enabled=False):
            return functional_call(self.vpm, weights, (pixel_values.float(),)).last_hidden_state

    def prepare_inputs_for_generation(self, input_ids, pixel_values=None, is_first_iteration=False, **kwargs):
        inputs = super().prepare_inputs_for_generation(input_ids, is_first_iteration=is_first_iteration, **kwargs)
        inputs["pixel_values"] = pixel_values if is_first_iteration else None
        return inputs
