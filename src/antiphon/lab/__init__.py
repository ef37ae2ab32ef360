"""Experiments: whole systems, ours and others', measured side by side.

``peers``
    One small adapter per messaging system, all of one interface.
``bench``
    Processes, points, medians and tables of ``antiphon bench``.
``plan``, ``plans``
    What a campaign of ``antiphon lab`` is to measure.
``campaign``, ``runner``
    Its directory, and its runs one after the other.
``protocols``, ``java``, ``worker``
    What is measured, and the processes that do the work.
``workloads``
    What competes with it: processor, garbage collector, memory.
``record``, ``sampling``, ``outcome``
    What is written down.

The command line hands plans down to this package; it drives nodes through their public interface
only, so that a peer and Antiphon are measured by the same code.
"""
