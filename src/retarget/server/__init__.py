"""The HTTP server that the CLI, the SDK, the studio and the runners talk to."""
