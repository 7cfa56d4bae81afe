"""Programs that run in the environments of other tools: one request per line, one number back."""
