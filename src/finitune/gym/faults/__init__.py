"""The faults, one file each; `finitune.gym.fault` says what a file declares."""
