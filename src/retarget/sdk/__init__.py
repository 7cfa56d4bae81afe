"""The Python client: submits, follows and fetches over the public HTTP API alone."""
