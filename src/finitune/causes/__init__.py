"""The cause book: one file per way to fail. `finitune.cause` says what a chapter may declare."""
