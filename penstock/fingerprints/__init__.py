"""Fingerprints of declarations: digests that change when what a declaration computes may have changed."""
