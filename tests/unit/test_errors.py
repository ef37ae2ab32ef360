from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from antiphon import errors
from antiphon.errors import (
    AntiphonError,
    AuthenticationFailed,
    Closed,
    ConfigError,
    DuplicateNode,
    PeerUnreachable,
    QueueFull,
    ReceiveTimeout,
    RequestTimeout,
    SendTimeout,
    WouldBlock,
)

ALL = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("cls", ALL)
def test_every_error_has_one_root_a_docstring_and_a_place_in_the_drawing(cls: type) -> None:
    assert issubclass(cls, AntiphonError)
    assert inspect.getdoc(cls)
    assert f" {cls.__name__} " in errors.__doc__.replace("\n", " ")


def test_all_lists_every_class_of_the_module() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert defined == set(errors.__all__)


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (PeerUnreachable, ConnectionError),
        (SendTimeout, TimeoutError),
        (RequestTimeout, TimeoutError),
        (ReceiveTimeout, TimeoutError),
        (WouldBlock, RuntimeError),
    ],
)
def test_errors_are_also_what_a_python_programmer_would_catch(cls: type, builtin: type) -> None:
    assert issubclass(cls, builtin)


def test_retries_of_unreachable_peers_do_not_catch_what_stays_wrong() -> None:
    assert not issubclass(AuthenticationFailed, PeerUnreachable)
    assert not issubclass(DuplicateNode, PeerUnreachable)


def test_facts_become_attributes_and_the_text_stays_the_text() -> None:
    error = SendTimeout("no room at node 2", peer=2, kind=200, waited=1.5, sent=7)
    assert str(error) == "no room at node 2"
    assert (error.peer, error.kind, error.waited, error.sent) == (2, 200, 1.5, 7)
    assert error.failed == {}


def test_facts_that_are_not_given_have_defaults() -> None:
    error = QueueFull("full")
    assert (error.capacity, error.pending) == (0, 0)
    assert Closed().what is None


def test_an_unknown_fact_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"no fact 'peeer'; it has .*peer"):
        SendTimeout("x", peeer=2)


def test_each_error_has_its_own_map_of_failures() -> None:
    first, second = Closed("a"), Closed("b")
    first.failed[2] = second
    assert second.failed == {}
    error = PeerUnreachable("two of three", failed={2: Closed("x")})
    assert list(error.failed) == [2]


@pytest.mark.parametrize("cls", ALL)
def test_errors_survive_pickle_and_copy_with_their_facts(cls: type[AntiphonError]) -> None:
    error = cls("what, where, do this", failed={3: Closed("gone", what="node 3")})
    for name in cls._facts - {"failed"}:
        setattr(error, name, f"fact {name}")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is cls
        assert str(other) == "what, where, do this"
        assert other.failed[3].what == "node 3"
        assert {n: getattr(other, n) for n in cls._facts - {"failed"}} == {
            n: f"fact {n}" for n in cls._facts - {"failed"}
        }


def test_repr_shows_the_facts_that_were_given() -> None:
    assert repr(ConfigError("bad", setting="kind", value=3)) == (
        "ConfigError('bad', setting='kind', value=3)"
    )
