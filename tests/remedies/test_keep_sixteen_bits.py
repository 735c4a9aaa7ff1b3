from finitune.facts import Quantization
from finitune.remedies.keep_sixteen_bits import propose


def test_fires_for_eight_bits():
    assert propose(Quantization(bits=8)).patch == {"load_in_8bit": False}


def test_stays_quiet_for_four_bits():
    assert propose(Quantization(bits=4)) is None
