"""Sources that read files: `tail` follows one through its rotations, `folder` reads each file dropped into it."""
