"""The user's own source: its lines and trees, what its names stand for, and its plain arithmetic computed again."""
