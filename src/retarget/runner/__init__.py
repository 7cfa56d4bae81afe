"""The program that runs next to the user's script on every target: Python >= 3.8, stdlib only."""
