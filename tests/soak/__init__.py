"""Load tests: many jobs, followers and clients at once, and the state of the server afterwards."""
