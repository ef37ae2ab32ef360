"""The acts of ``antiphon demo``, one module each.

``stage`` says what an act is and gives it a place to speak; ``side_by_side`` measures beside pyzmq.
Every other module holds one act, as ``ACT``, or one more scene of an act, as ``SCENE``. Receives a
stage from `antiphon.cli.demo`, which decides on the order; hands back plain figures. To add an act:
write its module, and name it in ``demo.ACTS``.
"""
