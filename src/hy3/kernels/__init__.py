"""Hot operations: each file holds a readable torch oracle and, beneath it, its fast twins."""
