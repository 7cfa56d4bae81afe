"""The Python client: submits and follows jobs over the public HTTP API."""
