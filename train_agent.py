"""Train an agent on measured latencies: the main job, the same as `atoffer train`."""

import sys

from atoffer_rl.cli.start import start

if __name__ == "__main__":
    sys.exit(start(sys.argv[1:], program="train_agent.py", command="train"))
