"""Put on PYTHONPATH by demos and tests alone: this machine's CPU stands in for a V100 where there is no GPU.

What it changes, each only in a process that imports the library in question, and nothing where torch sees a GPU:

torch         float16 matrix products at the speed of float32 ones, rounded and overflowing as a tensor core's do
transformers  TrainingArguments run on the CPU without an option
accelerate    fp16 means autocast with a GradScaler, as on a GPU, and not silently float32
deepspeed     fp16 is allowed, gloo needs no compiled extension, Adam is torch's own and not a CUDA kernel
torchvision, torchaudio  builds for CUDA are importable, without their compiled operators

`finitune run` never puts this file anywhere. Only the standard library is imported here.
"""

import functools
import importlib
import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).absolute().parent
BOOTSTRAP = HERE.parents[1] / "bootstrap" / "sitecustomize.py"

KEPT: list[object] = []
"""What ends with the last reference to it."""


def _bootstrap():
    """The pieces of `finitune run`'s own `sitecustomize`, without its effects."""
    spec = importlib.util.spec_from_file_location("finitune_bootstrap", BOOTSTRAP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _without_gpu(shim):
    @functools.wraps(shim)
    def apply(*modules):
        import torch

        if not torch.cuda.is_available():
            shim(*modules)

    return apply


@_without_gpu
def _float16_products(_torch):
    block = importlib.import_module("finitune.monitor.precision.float16_on_cpu").float16_on_cpu()
    block.__enter__()
    KEPT.append(block)


@_without_gpu
def _arguments_for_the_cpu(training_args):
    check = training_args.TrainingArguments.__post_init__

    @functools.wraps(check)
    def post_init(self):
        self.use_cpu = True
        check(self)

    training_args.TrainingArguments.__post_init__ = post_init


@_without_gpu
def _real_scaler(accelerator):
    import torch

    make = accelerator.Accelerator.__init__
    no_scaler = (accelerator.DistributedType.DEEPSPEED, accelerator.DistributedType.MEGATRON_LM)

    @functools.wraps(make)
    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        fp16 = self.state.mixed_precision == "fp16" and self.distributed_type not in no_scaler
        if fp16 and self.device.type == "cpu" and self.scaler is None:
            settings = self.scaler_handler.to_kwargs() if self.scaler_handler is not None else {}
            self.native_amp = True
            self.scaler = torch.amp.GradScaler("cpu", **settings)

    accelerator.Accelerator.__init__ = init


@_without_gpu
def _deepspeed_on_the_cpu(_real_accelerator):
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


@_without_gpu
def _fp16_allowed(cpu_accelerator):
    cpu_accelerator.CPU_Accelerator.is_fp16_supported = lambda _self: True


@_without_gpu
def _no_extension_for_gloo(comm):
    comm.build_shm_op = lambda: None


@_without_gpu
def _adam_of_torch(engine):
    configure = engine.DeepSpeedEngine._configure_basic_optimizer

    @functools.wraps(configure)
    def configured(self, parameters):
        if self.optimizer_name() in ("adam", "adamw") and not self.zero_use_cpu_optimizer():
            self.optimizer_params().setdefault("torch_adam", True)
        return configure(self, parameters)

    engine.DeepSpeedEngine._configure_basic_optimizer = configured


@_without_gpu
def _torchvision_without_operators():
    """Declare the operators that torchvision describes at import, when its library cannot be loaded."""
    import ctypes

    import torch

    found = importlib.util.find_spec("torchvision")
    place = Path(found.origin).parent if found is not None and found.origin else Path()
    try:
        for library in place.glob("_C*.so"):
            ctypes.CDLL(str(library))
    except OSError:
        operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(operators)


@_without_gpu
def _torchaudio_without_operators(utils):
    load = utils._load_lib

    def load_if_it_can(name):
        try:
            return load(name)
        except OSError:
            return False

    utils._load_lib = load_if_it_can


AFTER = {
    "torch": _float16_products,
    "transformers.training_args": _arguments_for_the_cpu,
    "accelerate.accelerator": _real_scaler,
    "deepspeed.accelerator.real_accelerator": _deepspeed_on_the_cpu,
    "deepspeed.accelerator.cpu_accelerator": _fp16_allowed,
    "deepspeed.comm.torch": _no_extension_for_gloo,
    "deepspeed.runtime.engine": _adam_of_torch,
    "torchaudio._extension.utils": _torchaudio_without_operators,
}
BEFORE = {"torchvision": _torchvision_without_operators}

if __name__ == "sitecustomize":
    _ours = _bootstrap()
    try:
        _ours.run_the_hidden_one(str(HERE))
    finally:
        sys.meta_path[:0] = [_ours.WaitFor(name, shim) for name, shim in AFTER.items()]
        sys.meta_path[:0] = [_ours.WaitFor(name, None, before=shim) for name, shim in BEFORE.items()]
