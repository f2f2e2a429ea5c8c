"""``hy3 --help`` must stay light: the heavy packages load only when a verb needs them."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ["torch", "fastapi", "transformers", "numba", "pydantic_core", "uvicorn", "matplotlib"]
SCRIPT = """
import json, sys
sys.argv = ["hy3", "--help"]
from hy3.cli.app import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print(json.dumps(sorted(set(name.partition(".")[0] for name in sys.modules))))
"""


def test_help_loads_nothing_heavy() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    loaded = json.loads(run.stdout.splitlines()[-1])
    assert "typer" in loaded
    assert not [name for name in HEAVY if name in loaded]
