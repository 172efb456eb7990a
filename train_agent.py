"""Train an agent on measured latencies: the main job, the same as `atoffer train`."""

import sys

from atoffer_rl.cli.app import run

if __name__ == "__main__":
    sys.exit(run(["train", *sys.argv[1:]], program="train_agent.py"))
