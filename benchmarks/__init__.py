"""Compares the speed of Retarget with other tools: `make bench`. One module per subject."""
