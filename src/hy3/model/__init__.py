"""The forward pass of ``hy_v3``, for every device and every caller; there is no other."""
