"""The reward of `trl_grpo.yaml`."""


def length(completions, **_):
    """Of each completion, a list of one message."""
    return [float(len(completion[0]["content"])) for completion in completions]
