"""The NVFP4 number format: codes, group scales and packed tensors, readable and bit exact."""
