"""Loops that numba compiles beforehand: for which processors, how, and how a process loads them without numba.

What is compiled lies beside its callers, in `decoding` and `values`; the object files of a build are in the folder `objects`.
"""
