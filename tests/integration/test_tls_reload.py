"""Certificates that change while a node runs."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from pathlib import Path

import pytest

from antiphon import TLS, AuthenticationFailed, Node
from antiphon.testing import Collected, eventually
from integration.tls_tools import KIND, QUICK, TLS_TESTS, Authority

pytestmark = TLS_TESTS


def replace(tls: TLS, by: TLS) -> None:
    """Writes new files over the old ones, certificate first: for a moment the two do not fit."""
    for name in ("certificate", "key"):
        Path(getattr(tls, name)).write_bytes(Path(getattr(by, name)).read_bytes())


def connects(address: str, tls: TLS) -> bool:
    """Whether a new node with these certificates finds node 1 at the address trustworthy."""
    with Node(2, listen=None, tls=tls, config=QUICK, peers={1: address}) as node:
        try:
            node.request(1, b"who are you", kind=KIND)
        except AuthenticationFailed:
            return False
    return True


def test_new_files_are_used_for_new_connections_and_old_connections_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Authority(tmp_path / "old", "old"), Authority(tmp_path / "new", "new")
    both = tmp_path / "both.pem"
    both.write_bytes(old.path.read_bytes() + new.path.read_bytes())
    served = old.node(1)
    served = TLS(served.certificate, served.key, str(both))
    with (
        Node(1, tls=served, config=QUICK) as one,
        Node(3, tls=old.node(3, trusts=old), config=QUICK, peers={1: one.address}) as standing,
    ):
        one.on(KIND, lambda source, data: data)
        lost: Collected[str] = Collected()
        standing.on_disconnected(lambda peer, reason: lost.add(reason))
        assert standing.request(1, b"before", kind=KIND) == b"before"
        knows_new = old.node(2, trusts=new)
        assert not connects(one.address, knows_new)
        replace(served, new.node(1))
        eventually(lambda: connects(one.address, knows_new), 15, "the new certificate is shown")
        assert not connects(one.address, old.node(2))
        assert standing.request(1, b"still there", kind=KIND) == b"still there"
        assert not lost.items


def test_the_files_of_a_node_that_dials_are_looked_at_too(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    with Node(1, tls=ours.node(1), config=QUICK) as one:
        one.on(KIND, lambda source, data: data)
        mine = theirs.node(2, trusts=ours)
        with Node(2, listen=None, tls=mine, config=QUICK, peers={1: one.address}) as two:
            with pytest.raises(AuthenticationFailed):
                two.request(1, b"", kind=KIND)
            replace(mine, ours.node(2))

            def connected() -> bool:
                with contextlib.suppress(AuthenticationFailed):
                    return two.request(1, b"now", kind=KIND) == b"now"
                return False

            eventually(connected, 15, "the new certificate is used")


def test_a_new_authority_alone_is_used_for_new_connections(tmp_path: Path) -> None:
    """Certificate and key stay what they were; whom the node trusts is another one."""
    old, new = Authority(tmp_path / "old", "old"), Authority(tmp_path / "new", "new")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.path.read_bytes())
    served = old.node(1)
    served = TLS(served.certificate, served.key, str(trusted))
    by_old, by_new = old.node(2), new.node(2, trusts=old)
    with (
        Node(1, tls=served, config=QUICK) as one,
        Node(3, listen=None, tls=old.node(3), config=QUICK, peers={1: one.address}) as standing,
    ):
        one.on(KIND, lambda source, data: data)
        lost: Collected[str] = Collected()
        standing.on_disconnected(lambda peer, reason: lost.add(reason))
        assert standing.request(1, b"before", kind=KIND) == b"before"
        assert connects(one.address, by_old)
        assert not connects(one.address, by_new)
        trusted.write_bytes(new.path.read_bytes())
        eventually(lambda: connects(one.address, by_new), 15, "the new authority is trusted")
        assert not connects(one.address, by_old)
        assert standing.request(1, b"still there", kind=KIND) == b"still there"
        assert not lost.items


@pytest.mark.parametrize("how", ["garbage", "missing", "another key"])
def test_a_broken_replacement_is_logged_and_the_old_one_stays(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "antiphon.node")

    def complaints() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        return [text for text in texts if "new certificates cannot be used" in text]

    ours = Authority(tmp_path)
    served = ours.node(1)
    good = Path(served.key).read_bytes()
    client = ours.node(2)
    beat = 0.1  # at which the files are looked at
    with Node(1, tls=served, config=dataclasses.replace(QUICK, heartbeat=beat)) as one:
        one.on(KIND, lambda source, data: data)
        assert connects(one.address, client)
        if how == "missing":
            Path(served.key).unlink()
        else:
            _, other = ours.issue("other", "antiphon:node:1")
            Path(served.key).write_bytes(b"no key" if how == "garbage" else other.read_bytes())
        eventually(complaints, 10, "it is logged")
        assert served.key in complaints()[0]
        assert connects(one.address, client)
        # Once, and not with every beat for as long as nobody looks.
        time.sleep(5 * beat)
        assert len(complaints()) <= 2
        Path(served.key).write_bytes(good)
        seen = len(complaints())
        time.sleep(3 * beat)
        assert len(complaints()) <= seen + 1
        assert connects(one.address, client)
