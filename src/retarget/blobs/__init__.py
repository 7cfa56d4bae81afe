"""Bytes on disk: content-addressed blobs, and the growing streams of attempts."""
