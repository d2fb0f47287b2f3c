"""Sources that read files: `tail` follows one through its rotations, `folder` reads each that is dropped into one."""
