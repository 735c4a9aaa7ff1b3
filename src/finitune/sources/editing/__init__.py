"""Changes inside the user's own text: JSON, YAML and shell scripts."""
