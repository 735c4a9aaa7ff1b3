"""Makes `llava/`: the tower and the language model of `model/` behind LLaVA's projector, with LLaVA's processor.

MiniCPM-V 2.6 brings its own code, which neither transformers nor TRL has; LLaVA is the class of theirs that is built
alike. What `make_model.py` has built in is in it as well; the projector is random, and the same on every run.
"""

from pathlib import Path

import torch
from modeling_minicpmv_tiny import MiniCPMV
from transformers import AutoTokenizer, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor, Qwen2Config
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

HERE = Path(__file__).parent
SLOT = "<image>"
TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>
{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
OF_MINICPMV = ("vision_config", "query_num", "image_token_id", "model_type", "architectures", "_name_or_path")


def main():
    torch.manual_seed(0)
    old = MiniCPMV.from_pretrained(HERE / "model")
    tower, words = old.config.vision_config, AutoTokenizer.from_pretrained(HERE / "model")
    language = Qwen2Config(**{key: value for key, value in old.config.to_dict().items() if key not in OF_MINICPMV})
    config = LlavaConfig(
        vision_config=tower, text_config=language, image_token_id=words.convert_tokens_to_ids(SLOT),
        vision_feature_layer=-1, vision_feature_select_strategy="full", tie_word_embeddings=False,
        pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id,
    )  # fmt: skip
    model = LlavaForConditionalGeneration(config)
    model.model.vision_tower.load_state_dict(old.vpm.state_dict())
    model.model.language_model.load_state_dict(old.llm.model.state_dict())
    model.lm_head.load_state_dict(old.llm.lm_head.state_dict())
    words.chat_template = None
    side = {"height": tower.image_size, "width": tower.image_size}
    processor = LlavaProcessor(
        image_processor=SiglipImageProcessorPil(size=side), tokenizer=words, patch_size=tower.patch_size,
        vision_feature_select_strategy="full", image_token=SLOT, chat_template=TEMPLATE,
    )  # fmt: skip
    model.to(torch.bfloat16).save_pretrained(HERE / "llava")
    processor.save_pretrained(HERE / "llava")


if __name__ == "__main__":
    main()
