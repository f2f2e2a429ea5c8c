"""``dequantize``: the BF16 twin of a quantized checkpoint, for engines that cannot read its forms.

Names, shards and assignment are those of the BF16 original. NVFP4 of ours loses nothing, because
its tensor scales are powers of two; elsewhere the values that had to be rounded are counted. The
shards are made as ``quantize`` makes them, and an interrupted run goes on likewise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hy3.checkpoint.model_config import CONFIG_NAME
from hy3.checkpoint.writer import write_file_durably
from hy3.quantize.export import export_small_files
from hy3.quantize.output_folder import OutputFolder
from hy3.quantize.pipeline import make_shards
from hy3.quantize.plan import Plan
from hy3.quantize.progress import Progress
from hy3.quantize.shard_source import LocalShards


@dataclass(frozen=True)
class Twin:
    """What was made."""

    weights: int  # decoded
    rounded_values: int  # that BF16 cannot hold exactly
    resumed_shards: int  # made by an earlier run


def dequantize(plan: Plan, out: Path, workers: int, progress: Progress) -> Twin:
    """Write the twin into ``out``; config.json comes last.

    Args:
        plan: of ``plan_twin``
        out: new, empty or of an interrupted run with the same plan

    Raises:
        InputError: OUT holds something else, or the source is unsound.
        EnvironmentFault: OUT is held by another process or cannot take the output.
    """
    source = LocalShards(plan.checkpoint.folder, plan.stamps)
    with OutputFolder(out, plan) as folder:
        resumed = make_shards("dequantize", folder, source, workers, progress)
        files = export_small_files(
            plan.checkpoint.folder, plan.raw_config, None, plan.written_specs()
        )
        for name in sorted(files, key=lambda name: name == CONFIG_NAME):
            write_file_durably(out / name, files[name])
        rounded = sum(shard.rounded for shard in folder.shards().values())
        folder.forget_state()
    return Twin(len(plan.stored), rounded, resumed)
