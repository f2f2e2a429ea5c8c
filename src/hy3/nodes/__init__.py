"""The machines that work together, and how commands get to them."""
