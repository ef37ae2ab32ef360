"""Java in the lab: writers and readers that run in a JVM of their own, the measured process.

``programs`` finds Java, compiles the programs of this folder at their first use and starts them as
children of a run. The programs are

``TcpNet``   TCP with the blocking sockets of ``java.net``
``TcpNio``   TCP with the channels of ``java.nio``, direct buffers and a selector
``Udp``      datagrams of ``java.net``
``Groups``   a group of JGroups 2.12, with its UDP or its TCP stack

and share ``Role`` (the orders), ``Facts`` (their JSON), ``Payload`` (what a message looks like),
``Pace`` (sending), ``Sink`` and ``Latencies`` (receiving), and ``Garbage`` (work for the
collector). They take orders from the lab's runner and hand back samples and latencies.
"""
