"""Does it scale: with sizes and leaves, on many devices, in many processes."""
