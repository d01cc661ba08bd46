"""A process that prints the topology that it was given."""

import argparse
import sys
from pathlib import Path
from tomllib import loads

from agent_rl.files.reading_json import read_text

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--topology", type=Path)
    sys.stdout.write(f"{loads(read_text(parser.parse_known_args()[0].topology))}\n")
