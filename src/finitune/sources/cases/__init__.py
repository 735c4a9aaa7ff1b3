"""What people write about a run -> Facts and observations."""
