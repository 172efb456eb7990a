"""Templates, each: device code (`.cuh`), its instantiation (`.cu.j2`), a space file (`.yml`), a description (`.py`)."""
