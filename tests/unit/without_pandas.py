"""A process without pandas, as in the images: where it is installed, pyarrow imports it, and more, when it makes an array."""

from __future__ import annotations

WITHOUT_PANDAS = """
import sys

class WithoutPandas:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError("as in the image, there is no pandas", name=name)

sys.meta_path.insert(0, WithoutPandas)
"""
"""Lines to begin a program with."""
