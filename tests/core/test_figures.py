"""Figures need no backend that a notebook asks for."""

import os
import subprocess
import sys


def test_a_backend_that_is_not_there_does_not_count():
    command = "from atoffer_rl.figures import new_figure; assert new_figure(3, 2).get_figwidth() == 3"
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    subprocess.run([sys.executable, "-c", command], env=environment, check=True, timeout=60)
