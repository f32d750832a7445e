# SPDX-License-Identifier: MIT OR Apache-2.0
"""weft under Slurm: a real controller and two nodes with simulated GPUs, in namespaces.

The cases are in tests/fixtures/slurm_cases.py; scripts/cluster plays them on larger clusters. They
need Slurm and root.
"""

import pytest
from fixtures import slurm, slurm_cases, slurm_order
from harness import jobs

pytestmark = pytest.mark.skipif(slurm.missing() is not None, reason=str(slurm.missing()))


@pytest.fixture(scope="module")
def play():
    with jobs.workspace() as folder:
        with slurm.Cluster(folder, broker_options=slurm.BROKER_OPTIONS) as cluster:
            yield slurm_cases.Play(cluster, slurm.python())


@pytest.mark.parametrize("case", slurm_cases.ALL + slurm_order.SHORT, ids=lambda case: case.__name__)
def test_slurm(play, case):
    slurm_cases.played(play, case)
