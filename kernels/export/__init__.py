"""Export of a scheme as a folder of generated kernels that runs without this package."""
