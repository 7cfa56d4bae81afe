"""What runs beside the user's script, the same on every target: standard library, Python >= 3.8."""
