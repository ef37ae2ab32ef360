"""The version, where the build and the package both read it without importing the core."""

__version__ = "0.1.0"
