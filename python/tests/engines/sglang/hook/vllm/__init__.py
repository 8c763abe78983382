"""A stand-in that SGLang imports on a CPU and never calls."""
