"""The clouds, behind one Protocol (`base.py`)."""
