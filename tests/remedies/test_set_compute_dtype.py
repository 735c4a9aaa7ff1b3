from finitune.facts import Hardware, Quantization
from finitune.remedies.set_compute_dtype import propose


def test_fires_with_what_the_card_can_do():
    four = Quantization(bits=4)
    assert propose(Hardware(name="A100", bfloat16=True), four).patch == {"bnb_4bit_compute_dtype": "bfloat16"}
    assert propose(Hardware(name="V100", bfloat16=False), four).patch == {"bnb_4bit_compute_dtype": "float32"}


def test_stays_quiet_about_the_four_bit_key_with_eight_bits():
    assert propose(quantization=Quantization(bits=8)).patch == {"dtype": "bfloat16"}


def test_stays_quiet_where_nothing_speaks_of_quantised_weights():
    assert propose(Hardware(name="A100", bfloat16=True)) is None
    assert propose(observations={"loss-not-finite": "train.log:3"}) is None
    assert propose(observations={"quantised": "load_in_4bit true"}) is not None
