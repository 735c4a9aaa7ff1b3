from finitune.facts import Attention, Training
from finitune.remedies.disable_cudnn_attention import propose


def test_fires_for_sdpa_said_or_by_default():
    assert propose(training=Training()).patch == propose(Attention(implementation="sdpa")).patch != {}


def test_stays_quiet_for_other_kernels():
    assert propose(Attention(implementation="eager")) is None
