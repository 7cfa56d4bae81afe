"""The HTTP server: the one way in for the CLI, the SDK, the studio and the runners."""
