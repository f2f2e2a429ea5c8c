"""From BF16 to a verified NVFP4 checkpoint: recipe, streaming pipeline, proof and export."""
