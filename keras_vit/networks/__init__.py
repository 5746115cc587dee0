"""Networks of transformers that are a Vision Transformer under a head of their own: their files.

`depth`, `detection`, `pose` and `segmentation` have one module for each kind of network.
"""
