"""FP8 (E4M3) weights under fp32 scales: a scale for each row, each 128 x 128 block, or one."""
