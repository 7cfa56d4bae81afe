"""The HTTP server that the CLI, the SDK and the runners talk to."""
