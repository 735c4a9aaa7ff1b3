"""Configurations of trainers -> Facts, one file per format."""
