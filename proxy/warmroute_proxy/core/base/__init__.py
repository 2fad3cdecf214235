"""Small modules that all other packages of the core import, and that import none of these packages."""
