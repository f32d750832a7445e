# SPDX-License-Identifier: MIT OR Apache-2.0
"""Requests that deploy/slurm/job_submit.lua must refuse or pass unchanged, as slurmctld hands them
in.

Names are those of Slurm 24.11.
"""

import re

import pytest
from harness import paths
from lupa import lua54

POLICY = paths.ROOT / "deploy" / "slurm" / "job_submit.lua"
FILTER = paths.ROOT / "deploy" / "slurm" / "cli_filter.lua"


class Script:
    """A script of Slurm's with other numbers. `told` has the lines that it logs for the user."""

    def __init__(self, file, **numbers):
        text = file.read_text()
        for name, value in numbers.items():
            text, count = re.subn(rf"(?m)^local {name} = .*$", f"local {name} = {value}", text)
            assert count == 1, f"{name} is not in {file}"
        self.lua = lua54.LuaRuntime()
        self.told = []
        self.lua.globals().tell = self.told.append
        self.lua.execute("slurm = { SUCCESS = 0, ERROR = -1, GRES_ALLOW_TASK_SHARING = 1, log_user = function(...) tell(string.format(...)) end }")
        self.lua.execute(text)

    def table(self, said):
        """A dictionary as the script sees it; lists begin with 0, as Slurm's do."""
        if isinstance(said, (list, tuple)):
            said = dict(enumerate(said))
        if isinstance(said, dict):
            return self.lua.table_from({name: self.table(value) for name, value in said.items()})
        return said

    def submits(self, **request):
        """Whether the job may be; and its request as it is then."""
        table = self.table(request)
        parts = self.table({"gpu": {"flag_default": 1}})
        return self.lua.globals().slurm_job_submit(table, parts, 1000) == 0, table


@pytest.mark.finding("attack-A10")
def test_no_form_of_a_request_has_more_shards_on_a_node_than_a_job_may_have():
    script = Script(POLICY, MOST_SHARDS=80)
    for request in (
        {"tres_per_node": "gres/shard:81"},
        {"tres_per_node": "gres:shard:81"},
        {"tres_per_node": "shard:81"},
        {"tres_per_node": "gres/shard:1K"},
        {"tres_per_node": "gres/shard:1g"},
        {"tres_per_node": "gres/shard:h100:100"},
        {"tres_per_node": "gres/shard:h100=100(S:0)"},
        {"tres_per_node": "gres/shard=100"},
        {"tres_per_node": "gres/shard:1,gres/shard:100"},
        {"tres_per_node": "gres/shard:h100:50,gres/shard:a100:31"},
        {"tres_per_node": "gres/shard:-1"},
        {"tres_per_node": "GRES/SHARD:81"},
        {"tres_per_socket": "gres/shard:81"},
        {"tres_per_job": "gres/shard:81"},
        {"tres_per_task": "cpu=1,gres/shard:100"},
        {"tres_per_task": "gres/shard:41", "num_tasks": 2},
        {"tres_per_task": "gres/shard:41", "num_tasks": 4, "min_nodes": 3},
        {"tres_per_task": "gres/shard:41", "num_tasks": 4, "ntasks_per_node": 2},
    ):
        script.told.clear()
        accepted, _ = script.submits(**request)
        assert not accepted and "a job may have 80" in script.told[0], request
    for request in (
        {},
        {"tres_per_node": "gres/shard:80"},
        {"tres_per_node": "gres/shard"},
        {"tres_per_node": "gres/shard:h100"},
        {"tres_per_node": "gres/shard:40,gres/shard:40"},
        {"tres_per_node": "gres/gpu:100,gres/license:1000"},
        {"tres_per_task": "gres/shard:40", "num_tasks": 2},
        {"tres_per_task": "gres/shard:40", "num_tasks": 4, "min_nodes": 3},
        {"tres_per_task": "gres/shard:40", "num_tasks": 64, "ntasks_per_node": 2},
        {"tres_per_task": "gres/shard:40", "num_tasks": 4294967294, "ntasks_per_node": 65534},
    ):
        accepted, _ = script.submits(**request)
        assert accepted, f"{request}: {script.told}"


@pytest.mark.finding("attack-A10")
def test_no_form_of_a_request_asks_for_a_priority_that_its_account_has_not():
    script = Script(POLICY, FIRST_PRIORITY_OF_ALL=5, IMPORTANT_ACCOUNTS="{ prod = true }")
    option = "SPANK_WEFT_PRIORITY="
    for request in (
        {"spank_job_env": [f"{option}0"], "spank_job_env_size": 1},
        {"spank_job_env": [f"{option}9", f"{option}0"], "spank_job_env_size": 2},
        {"environment": {"WEFT_PRIORITY": "0"}},
        {"environment": {"WEFT_PRIORITY": " High"}},
        {"environment": {"WEFT_PRIORITY": "+4"}},
        {"environment": {"WEFT_PRIORITY": "4"}, "spank_job_env": [f"{option}9"], "spank_job_env_size": 1},
    ):
        script.told.clear()
        accepted, _ = script.submits(**request)
        assert not accepted and "is not for this account: 5 to 9" in script.told[0], request
        accepted, _ = script.submits(account="prod", **request)
        assert accepted, request
    for request in (
        {"environment": {"WEFT_PRIORITY": "5"}},
        {"environment": {"WEFT_PRIORITY": "low"}},
        {"environment": {"WEFT_PRIORITY": "no priority"}},
        # Jobs of a weft job do not inherit the plugin's variables: the plugin takes them away.
        {"environment": {"WEFT_PRIORITY": "0", "WEFT_SLURM_JOB": "7"}},
    ):
        accepted, _ = script.submits(**request)
        assert accepted, f"{request}: {script.told}"


@pytest.mark.finding("attack-A10")
def test_a_job_that_asks_for_gpus_in_any_way_is_given_no_shards_beside_them():
    script = Script(POLICY, DEFAULT_SHARDS="{ gpu = 4 }")
    for name in ("tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task"):
        for asked in ("gres/gpu:1", "cpu=1,gres/gpu=h100:1", "gres/shard:2", "gres/mps:50"):
            accepted, request = script.submits(**{name: asked})
            assert accepted and request[name] == asked, f"{name} {asked}"
            assert request["tres_per_node"] == (asked if name == "tres_per_node" else None), f"{name} {asked}"
    for asked, given in ((None, "gres/shard:4"), ("gres/nic:1", "gres/nic:1,gres/shard:4")):
        accepted, request = script.submits(**({"tres_per_node": asked} if asked else {}))
        assert accepted and request["tres_per_node"] == given, asked


@pytest.mark.finding("attack-A10")
def test_the_filter_adds_no_shards_beside_gpus_of_a_task():
    script = Script(FILTER)
    for asked, given in ((None, "shard:20"), ("cpu=2", "shard:20"), ("gres/gpu:1", None), ("cpu=1,gres/shard:4", None)):
        options = script.table({"spank": {"weft": {"gpu-mem": "20G"}}, **({"tres-per-task": asked} if asked else {})})
        assert script.lua.globals().slurm_cli_pre_submit(options, 0) == 0
        assert options["gres"] == given, asked
