"""Runs the tests marked long and records what became of each, with the seed and the commit.

python tools/test_long.py [--seed N]       # what `make test-long` calls
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from recorded_tests import run_recorded


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--out", type=Path, default=None)
    options, more = parser.parse_known_args()
    arguments = ["-m", "long", f"--hypothesis-seed={options.seed}", *more]
    facts = {"seed": options.seed}
    return run_recorded("test_long", sys.executable, arguments, options.out, facts)


if __name__ == "__main__":
    sys.exit(main())
