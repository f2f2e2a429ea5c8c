"""Writes ``heldout.txt`` beside the weights: documents that neither tokenizer nor model have seen.

Plain text of all sources and dialogues in turn, each with its begin marker.
Run from the repository root:
    python -m tools.tiny.write_heldout --sources FOLDER
"""

from __future__ import annotations

import argparse
import random
from itertools import islice, zip_longest
from pathlib import Path

from tools.tiny.corpus import read_sources, split_pieces
from tools.tiny.dialogues import draw_dialogue
from tools.tiny.rendering import BOS, FOLDER, Renderer
from tools.tiny.split import HELD_OUT

DIVIDER = "\n====\n"
PER_SOURCE, CHARACTERS = 40, 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, required=True)
    options = parser.parse_args()
    columns = []
    for text in read_sources(options.sources).values():
        pieces = split_pieces(text, HELD_OUT, 10**6)
        starts = ((p, at) for p in pieces for at in range(0, len(p) - CHARACTERS // 2, CHARACTERS))
        parts = (piece[at : at + CHARACTERS] for piece, at in starts)
        columns.append(list(islice((BOS + p for p in parts if DIVIDER not in p), PER_SOURCE)))
    texts = [text for row in zip_longest(*columns) for text in row if text]  # sources in turn
    rng, renderer = random.Random("heldout.txt"), Renderer()
    documents = [
        part for text in texts for part in (text, renderer.whole(draw_dialogue(rng, HELD_OUT)))
    ]
    (FOLDER / "heldout.txt").write_text(DIVIDER.join(documents), encoding="utf-8")


if __name__ == "__main__":
    main()
