"""`python -m retarget` is the `retarget` command."""

from retarget.cli import main

if __name__ == "__main__":
    main()
