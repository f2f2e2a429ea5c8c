"""Does it fit, how fast will it be, which configuration: decided from headers, before any load."""
