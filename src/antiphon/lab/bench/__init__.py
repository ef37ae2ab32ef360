"""``antiphon bench``: ours and the peers, side by side in one run.

``plan``       which points are measured, and in which groups
``processes``  starting, asking and ending the processes of a point
``worker``     what runs in those processes; ``orders`` is how they are spoken to
``point``      one point, measured once
``calls``      one point of requests, from ``request_plan``, measured once with ``call_worker``
``topics``     one point of topics, from ``topic_plan``, measured once with ``topic_worker``
``latency``    percentiles of round trips and delays
``probes``     what a node costs when it idles, alone and with 1,000 connections (with
               ``idle_worker``), and when its receiver stands still; ``topic_probes`` what shares
               give and what very many topics cost (with ``topic_probe_worker``)
``machine``    what it ran on, and who else used the processor
``summary``    medians, spreads, ratios and the targets they are held against
``report``     tables and JSON

A point goes down from the plan to worker processes, which use the adapters of ``lab.peers``; the
measurements come back up to the summary and the report.
"""
