"""One template a trio: device code (`.cuh`), a thin instantiation (`.cu.j2`) and its Python description."""
