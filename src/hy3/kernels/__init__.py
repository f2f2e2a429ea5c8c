"""Hot operations: each file holds a readable torch oracle and, beneath it, its fast twins."""

from hy3.kernels.jit_cache import use_versioned_cache

use_versioned_cache()
