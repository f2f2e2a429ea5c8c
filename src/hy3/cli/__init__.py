"""One file per verb; everything heavy is imported inside the verb's function."""
