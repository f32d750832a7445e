# SPDX-License-Identifier: MIT OR Apache-2.0
"""weft's figures of jobs are the real ones: in every view, by the device's log and the service's
own clock."""

import shutil

import pytest
from fixtures.scene import missing
from harness import jobs
from harness.bench import told

# Seconds of the service without other jobs, and of all together.
ALONE_S, TOGETHER_S = 1.5, 2.5
# If the host lacks a core for the service now and then, `lost` moves by more than is judged. weft
# learns from only a few of the requests, so its figure scatters more than the mean of all.
# `scripts/bench readme --check` has the strict bound.
TRIES_OF_LOST, MORE_SCATTER = 2, 3

# Kinds whose figures are still off, and why. Play one by its name with --runxfail.
OFF = {"2 to 7 us, slow host": "2.1 us a launch too short, 2 to 4 us each: the host's time that is taken off"}


def kinds():
    off = {kind: [pytest.mark.xfail(run=False, reason=why)] for kind, why in OFF.items()}
    return [pytest.param(kind, marks=off.get(kind, [])) for kind in told.KINDS]


@pytest.fixture(scope="module")
def profiles():
    """The service's profile, which all kinds of companion jobs share."""
    if absent := missing():
        pytest.exit(absent, returncode=3)
    with jobs.workspace() as folder:
        yield told.learn_service(folder)


@pytest.mark.finding("users2-H1")
@pytest.mark.parametrize("kind", kinds())
def test_what_weft_tells_is_what_the_device_did(kind, profiles, folder, record_property):
    for turn in range(TRIES_OF_LOST):
        place = folder / str(turn)
        shutil.copytree(profiles, place / "profiles")
        of = told.KINDS[kind]
        figures, lost = told.play(place, of, alone=ALONE_S, together=TOGETHER_S)
        scatter = MORE_SCATTER * lost["its error"]
        off = [one for one in figures if one.is_off(scatter if one.what == "lost" else 0)]
        if not off or any(figure.what != "lost" for figure in off):
            break
    assert not off, "\n".join([*map(str, off), str(lost)])
    record_property("told", f"{len(figures)} figures; {lost}")
