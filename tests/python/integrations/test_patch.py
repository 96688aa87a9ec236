# SPDX-License-Identifier: Apache-2.0
"""Patch and Seam, on modules made for the test."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import rlk
from rlk.integrations._patch import Patch, Seam


class Theirs:
    """What stands there before; not names of this module, where they would be replaced too."""

    @staticmethod
    def logp(logits, labels):
        return "theirs"

    class Head:
        @staticmethod
        def apply(hidden, weight):
            return "theirs"

        def method(self, hidden):
            return f"theirs {hidden}"

    class Child(Head):
        pass


@pytest.fixture
def fakes(monkeypatch):
    """fake, fake.ops with the functions, and a module that imported one of them by name."""
    names = ("fake", "fake.ops", "fake.user")
    made = {name: ModuleType(name) for name in names}
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "fake.second_name_of_user", made["fake.user"])
    made["fake"].__version__ = "1.16.3"
    made["fake.ops"].logp = Theirs.logp
    made["fake.ops"].Head = Theirs.Head
    made["fake.ops"].Child = Theirs.Child
    made["fake.user"].its_logp = Theirs.logp
    return made


def ours(original):
    return lambda *args: f"ours of {original(*args)}"


def make(*seams, **options):
    return Patch("fake", **{"since": "1.16", "before": "1.17", "seams": seams, **options})


def test_functions_are_replaced_everywhere_and_put_back(fakes):
    ops, user = fakes["fake.ops"], fakes["fake.user"]
    patch = make(Seam("fake.ops:logp", ours, "logits, labels"))
    patch.on()
    replaced = ops.logp
    assert ops.logp(1, 2) == user.its_logp(1, 2) == "ours of theirs"
    patch.on()  # a second time is none
    assert ops.logp is replaced
    assert patch.is_on
    user.later = ops.logp  # as `from fake.ops import logp` of a module that is imported now
    patch.off()
    assert ops.logp is user.its_logp is user.later is Theirs.logp
    patch.off()
    assert not patch.is_on
    patch.on()
    assert user.later(1, 2) == "ours of theirs"
    patch.off()


def test_methods_keep_their_kind(fakes):
    before = dict(vars(Theirs.Head))
    seams = [Seam("fake.ops:Head.apply", ours, "hidden, weight")]
    seams += [Seam("fake.ops:Head.method", ours, "self, hidden")]
    seams += [Seam("fake.ops:Child.method", lambda original: lambda self, hidden: "child")]
    patch = make(*seams)
    patch.on()
    assert Theirs.Head.apply(1, 2) == Theirs.Head().apply(1, 2) == "ours of theirs"
    assert Theirs.Head().method(3) == "ours of theirs 3"
    assert Theirs.Child().method(3) == "child"
    patch.off()
    assert dict(vars(Theirs.Head)) == before
    assert "method" not in vars(Theirs.Child)  # it was inherited, and is again


@pytest.mark.parametrize("version", ["1.15.9", "1.17.0", "2", "odd"])
def test_untried_versions_are_refused(fakes, version):
    fakes["fake"].__version__ = version
    patch = make(Seam("fake.ops:logp", ours))
    with pytest.raises(rlk.Unsupported, match=r"1\.16 or later, below 1\.17.*allow_untried"):
        patch.on()
    assert fakes["fake.ops"].logp is Theirs.logp
    with pytest.raises(rlk.InvalidArgument, match=r"^fake: allow_untried: expected True or False"):
        patch.on(allow_untried="no")
    patch.on(allow_untried=True)
    assert fakes["fake.ops"].logp is not Theirs.logp
    patch.off()


@pytest.mark.parametrize("version", ["1.16", "1.16.0.dev3", "1.16.9", "1.16.2rc1"])
def test_tried_versions_pass(fakes, version):
    fakes["fake"].__version__ = version
    make().check_version()


@pytest.mark.parametrize(
    ("seam", "words"),
    [
        (Seam("fake.ops:lost", ours), "fake.ops:lost: .*nothing of that name"),
        (Seam("fake.ops:Lost.method", ours), "nothing of that name"),
        (
            Seam("fake.ops:logp", ours, ("logits", "labels")),
            "'logits' or 'labels'.*'logits, labels'",
        ),
        (Seam("fake.ops:Head.method", None, "self"), "parameters 'self'.*'self, hidden'"),
    ],
)
def test_another_package_than_known_is_refused_and_left_alone(fakes, seam, words):
    patch = make(Seam("fake.ops:logp", ours), seam)
    with pytest.raises(rlk.Unsupported, match=words):
        patch.on(allow_untried=True)
    assert fakes["fake.ops"].logp is fakes["fake.user"].its_logp is Theirs.logp
    assert not patch.is_on


@pytest.mark.parametrize("path", ["fake.ops:lost", "fake.lost:logp"])
def test_optional_seams_may_be_absent(fakes, path):
    patch = make(Seam(path, ours, optional=True), Seam("fake.ops:logp", ours))
    patch.on()
    assert fakes["fake.ops"].logp is not Theirs.logp
    patch.off()


def test_what_cannot_be_imported_is_a_load_error(fakes):
    with pytest.raises(rlk.LoadError, match=r"fake: fake.lost: .*ModuleNotFoundError"):
        make(Seam("fake.lost:logp", ours)).on()
    with pytest.raises(rlk.LoadError, match="no_such_package_of_anyone"):
        Patch("no_such_package_of_anyone", since="1", before="2").on()


def test_extra_runs_both_ways_and_failures_leave_nothing(fakes):
    told = []

    def fail():
        raise KeyError("registered already")

    both = (lambda: told.append("on"), lambda: told.append("off"))
    patch = make(Seam("fake.ops:logp", ours), extra=(both,))
    patch.on()
    patch.off()
    assert told == ["on", "off"]
    broken = make(Seam("fake.ops:logp", ours), extra=(both, (fail, fail)))
    with pytest.raises(KeyError):
        broken.on()
    assert told == ["on", "off", "on", "off"]
    assert fakes["fake.ops"].logp is Theirs.logp


def test_what_extra_cannot_undo_keeps_nothing_else_replaced(fakes):
    told = []

    def fail():
        raise KeyError("somebody has emptied the registry")

    extra = ((list, lambda: told.append("off")), (list, fail))
    patch = make(Seam("fake.ops:logp", ours), extra=extra)
    patch.on()
    with pytest.raises(KeyError, match="emptied"):
        patch.off()
    assert fakes["fake.ops"].logp is fakes["fake.user"].its_logp is Theirs.logp
    assert told == ["off"]
    assert not patch.is_on


def test_what_was_replaced_again_stays_and_is_told(fakes):
    patch = make(Seam("fake.ops:logp", ours))
    patch.on()
    fakes["fake.ops"].logp = later = object()
    with pytest.raises(rlk.Unsupported, match=r"fake.ops.logp: .*put there since"):
        patch.off()
    assert fakes["fake.ops"].logp is later
    assert fakes["fake.user"].its_logp is Theirs.logp


def test_two_patches_of_one_name_come_off_in_turn(fakes):
    inner, outer = make(Seam("fake.ops:logp", ours)), make(Seam("fake.ops:logp", ours))
    inner.on()
    outer.on()
    assert fakes["fake.ops"].logp(1, 2) == "ours of ours of theirs"
    outer.off()
    inner.off()
    assert fakes["fake.ops"].logp is Theirs.logp
