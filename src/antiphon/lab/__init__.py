"""Experiments: whole systems, ours and others', measured side by side.

``peers``
    One small adapter per messaging system, all of one interface.
``bench``
    Processes, points, medians and tables of ``antiphon bench``.

The command line hands plans down to this package; it drives nodes through their public interface
only, so that a peer and Antiphon are measured by the same code.
"""
