"""What is kept of a step, in memory and on disk, and what is read of it without running it again."""
