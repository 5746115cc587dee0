"""Families of Vision Transformers: one file of plain tables each."""
