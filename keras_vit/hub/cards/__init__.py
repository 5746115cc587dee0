"""Cards of published checkpoints."""
