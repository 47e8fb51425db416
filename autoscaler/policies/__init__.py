"""One decision a file. Each is a pure function of a view, and gives reasons."""
