"""Text towers and tokenizers, from the files of their checkpoints."""
