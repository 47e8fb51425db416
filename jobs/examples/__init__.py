"""Programs to run and to learn from; the demo runs one of them."""
