"""Reinforcement-learning search for fast sparse-attention encoders on the GPU at hand."""

__version__ = "0.1.0"
