"""Competing work: what a measured program has to share its machine with.

``cpu``      processes that hold a share of all cores, alternating busy and idle
``garbage``  a thread inside the measured process that keeps the garbage collector at work
``memory``   a process that holds memory and touches it again and again

A runner hands down targets and starts a load before the traffic; each load hands back what it
really took, because a target that was not reached is not the experiment that was asked for. The
kernel and the collector are all that they know: nothing here sends a message.
"""
