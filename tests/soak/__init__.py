"""Load: many jobs, followers and clients at once, and what the server is like afterwards."""
