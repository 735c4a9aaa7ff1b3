import hydra
import lightning.pytorch as pl
import torch
from omegaconf import DictConfig
from transformers import AutoModelForCausalLM


class LM(pl.LightningModule):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.net = AutoModelForCausalLM.from_pretrained(
            cfg.model.pretrained_model_name_or_path, torch_dtype=getattr(torch, cfg.model.torch_dtype)
        )

    def training_step(self, batch, _):
        loss = self.net(**batch).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return hydra.utils.instantiate(self.cfg.optim, params=self.net.parameters())


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig):
    pl.seed_everything(cfg.seed)
    from data import PoemData

    trainer = pl.Trainer(**cfg.trainer)
    trainer.fit(LM(cfg), PoemData(**cfg.data))


if __name__ == "__main__":
    main()
