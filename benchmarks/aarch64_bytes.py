"""Whether the scale search gives the same bytes on aarch64 as here: digests of all its results.

    python benchmarks/aarch64_bytes.py --packages SITE --cpu host --cpu cortex-x925 -- \\
        qemu-aarch64 -L ROOT ROOT/usr/bin/python3.11

What follows ``--`` starts an aarch64 Python, emulated or over ssh; SITE is a folder with its numpy,
numba and torch. Both sides read the same weights from a folder that this script fills, run the
compiled kernel and the torch oracle under every rule, without and with column weights, and digest
everything that comes out. ``--cpu`` names the processors that numba compiles for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from hy3.errors import CheckFailed  # noqa: E402
from hy3.kernels.scale_search import largest_magnitude, quantize_bits  # noqa: E402
from hy3.nvfp4.scales import RULES, tensor_scale  # noqa: E402

GROUPS = 8192
ORACLE_GROUPS = 256
TIMEOUT_S = 1800


def write_inputs(folder: Path) -> None:
    """Weights and column weights, as plain arrays: their generators may differ by machine."""
    import torch

    from support.distributions import (
        EDGES,
        NAMES,
        WEIGHT_KINDS,
        make_column_weights,
        make_weight,
    )

    for name in NAMES + EDGES:
        bits = make_weight(name, GROUPS).view(torch.int16).numpy().view(np.uint16)
        np.save(folder / f"weight {name}.npy", bits)
    for kind in WEIGHT_KINDS:
        np.save(folder / f"columns {kind}.npy", make_column_weights(kind, bits.shape[1]).numpy())


def digest_all(folder: Path) -> dict[str, Any]:
    """Digests of every result on this machine, and what made them."""
    import llvmlite.binding
    import numba
    import torch

    start = time.process_time()
    columns = {path.stem: np.load(path) for path in sorted(folder.glob("columns *.npy"))}
    digests = {}
    for path in sorted(folder.glob("weight *.npy")):
        bits = np.load(path)
        t = tensor_scale(largest_magnitude(bits))
        few = bits[: ORACLE_GROUPS * 16 // bits.shape[1]]
        for rule in RULES:
            for kind, h in {"no columns": None, **columns}.items():
                key = f"{path.stem}, {rule}, {kind}"
                digests[f"{key}, numba"] = _digest(quantize_bits.named("numba")(bits, t, rule, h))
                digests[f"{key}, torch"] = _digest(quantize_bits.oracle(few, t, rule, h))
    return {
        "machine": platform.machine(),
        "compiled_for": numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numba": numba.__version__,
            "numpy": np.__version__,
        },
        "cpu_s": round(time.process_time() - start, 1),
        "digests": digests,
    }


def _digest(result: Any) -> str:
    digest = hashlib.sha256()
    for field in fields(result):
        digest.update(getattr(result, field.name).tobytes())
    return digest.hexdigest()


def digest_there(python: list[str], packages: str, cpu: str, folder: Path) -> dict[str, Any]:
    """What ``digest_all`` gives under the other Python, compiled for ``cpu``."""
    environment = os.environ | {"PYTHONPATH": packages, "NUMBA_CACHE_DIR": str(folder / cpu)}
    if cpu != "host":
        environment["NUMBA_CPU_NAME"] = cpu
    run = subprocess.run(
        [*python, __file__, "--digest", str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    document: dict[str, Any] = json.loads(run.stdout)
    return document


def compare(here: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """The run there without its digests, and the keys under which they differ."""
    one, other = here["digests"], there["digests"]
    differing = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    return {key: value for key, value in there.items() if key != "digests"} | {
        "compared": len(one),
        "differing": differing,
    }


def main() -> None:
    """Compare, and leave benchmarks/results/aarch64_bytes.json; exit 1 on a difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--digest", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--packages", default="")
    parser.add_argument("--cpu", action="append")
    parser.add_argument("python", nargs="*")
    options = parser.parse_args()
    if options.digest:
        json.dump(digest_all(options.digest), sys.stdout)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        here = digest_all(folder)
        runs = [
            compare(here, digest_there(options.python, options.packages, cpu, folder))
            for cpu in options.cpu or ["host"]
        ]
    _leave(here, runs, options.python)


def _leave(here: dict[str, Any], runs: list[dict[str, Any]], python: list[str]) -> None:
    from record import record

    together = hashlib.sha256("".join(sorted(here["digests"].values())).encode()).hexdigest()
    version = subprocess.run([python[0], "--version"], capture_output=True, text=True).stdout
    results = {
        "groups": {"numba": GROUPS, "torch": ORACLE_GROUPS},
        "fields": "packed, scales, errors, max_errors, energies, shifts",
        "started_by": (version.splitlines() or [Path(python[0]).name])[0],
        "here": {key: here[key] for key in ("machine", "compiled_for", "versions")},
        "digest_of_digests": together,
        "there": runs,
    }
    # Folders by their names: where they lie says nothing to anyone else.
    words = [Path(each).name if Path(each).is_absolute() else each for each in sys.argv]
    command = " ".join(["python", *words])
    print(record("aarch64_bytes", {"command": command, "results": results}))
    if differing := [key for run in runs for key in run["differing"]]:
        raise CheckFailed(
            f"{len(differing)} results differ, the first: {differing[0]}",
            hint="docs/formats.md says which operations must round alike",
            where="aarch64_bytes",
        )


if __name__ == "__main__":
    main()
