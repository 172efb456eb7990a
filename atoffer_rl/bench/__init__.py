"""Ours and peers side by side: one run, the same inputs, the same timing."""
