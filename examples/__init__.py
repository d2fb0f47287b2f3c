"""Apps that run, and what they run on."""
