"""Runs the tests that need another environment, and records what became of each.

python tools/test_elsewhere.py peers --python PYTHON     # vLLM and pytest: `make test-peers`
python tools/test_elsewhere.py gpu --python PYTHON       # a CUDA device, Triton, hy3's
                                                         # dependencies and pytest: `make test-gpu`
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from recorded_tests import run_recorded

# Of pyproject.toml's options those that need no plugin.
PLAIN = ["-o", "addopts=", "-q", "-rs", "-p", "no:cacheprovider"]
# Those that `record` would name of the environment that this script runs in, and more.
PACKAGES = ("torch", "numba", "numpy", "tokenizers", "llguidance", "fastapi", "uvicorn")
PACKAGES += ("vllm", "compressed-tensors", "triton", "pytest")
PROBE = """
import importlib.metadata as metadata, json, sys
versions = {"python": sys.version.split()[0]}
for name in sys.argv[1:]:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        versions[name] = None
import torch
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps({"versions": versions, "hardware": {"gpu": gpu}}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=("peers", "gpu"))
    parser.add_argument("--python", required=True, help="the other environment's interpreter")
    parser.add_argument("--out", type=Path, default=None)
    options, more = parser.parse_known_args()
    command = [options.python, "-c", PROBE, *PACKAGES]
    probe = subprocess.run(command, capture_output=True, text=True)
    if probe.returncode:
        print(f"{options.python} has no torch that works: {probe.stderr[-500:]}", file=sys.stderr)
        return 1
    found = json.loads(probe.stdout.splitlines()[-1])
    # Tests marked long are tests too: it is their environment that is rare.
    arguments = [*PLAIN, f"tests/{options.suite}", *more]
    name = f"test_{options.suite}"
    return run_recorded(name, options.python, arguments, options.out, {}, **found)


if __name__ == "__main__":
    sys.exit(main())
