"""One HTML file that tells what a campaign found, and opens without a network.

::

    data ──▶ figures_* ──▶ page ──▶ DIR/report.html
       └───▶ words ──────────▲
    papers ──────────────────┘

`data` reads the finished tables with PyArrow; every module ``figures_*`` turns rows into figures of
a bounded size; `words` says in plain sentences what they show; `papers` has the values of the
papers; `page` writes all of it. No Spark, and no figure without its numbers beside it.

Receives the tables of `antiphon.pipeline`, hands the file to people.
"""

from __future__ import annotations

from antiphon.pipeline.report.write import REPORT, write_report

__all__ = ["REPORT", "write_report"]
