"""Writes ``heldout.txt`` beside the weights: documents that neither tokenizer nor model have seen.

Plain text and dialogues in turn, each with its begin marker. Run from the repository root:
    python -m tools.tiny.write_heldout --sources FOLDER
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from tools.tiny.corpus import read_sources, split_pieces
from tools.tiny.dialogues import draw_dialogue
from tools.tiny.rendering import BOS, FOLDER, Renderer
from tools.tiny.split import HELD_OUT

DIVIDER = "\n====\n"
PER_SOURCE, CHARACTERS = 6, 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, required=True)
    options = parser.parse_args()
    texts = []
    for text in read_sources(options.sources).values():
        pieces = [piece for piece in split_pieces(text, HELD_OUT, 10**6) if DIVIDER not in piece]
        texts += [BOS + piece[:CHARACTERS] for piece in pieces[:PER_SOURCE]]
    rng, renderer = random.Random("heldout.txt"), Renderer()
    documents = [
        part for text in texts for part in (text, renderer.whole(draw_dialogue(rng, HELD_OUT)))
    ]
    (FOLDER / "heldout.txt").write_text(DIVIDER.join(documents), encoding="utf-8")


if __name__ == "__main__":
    main()
