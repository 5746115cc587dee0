"""The command line, `keras-vit`."""
