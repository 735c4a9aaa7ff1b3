"""The cause book: one file per way to fail. `finitune.chapter` says what a chapter may declare."""
