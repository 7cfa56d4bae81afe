"""Names the command that installs an optional dependency of Retarget."""


def install_command(extra: str) -> str:
    """Return the command for an extra. Retarget is installed from a clone, not from an index."""
    return f"pip install '.[{extra}]' in your clone of Retarget"
