"""A machine, a script or a neighbour that makes trouble."""
