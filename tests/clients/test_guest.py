# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does weft ever break a job? Odd programs and odd surroundings, each plainly and under weft: the
same exit code, the same stdout, no hang.

Each case runs on a simulated GPU and a broker of its own; the programs are in tests/clients/guest.
"""

from fixtures.scene import BOUND, says
from guest_stage import PYTHON, compiled, counters, in_roles, plainly, queue, same, script
from harness import jobs, paths


def test_many_threads_with_small_stacks(scene):
    in_roles(scene, script("threads.py"))


def test_many_contexts_and_a_driver_opened_again(scene):
    in_roles(scene, script("contexts.py"))


def test_a_context_that_ends_and_begins_again(scene):
    """weft's objects in it (events behind a background job's work) went with it: to use them again
    ends the job."""
    program = compiled(scene, "resets.c")
    in_roles(scene, [program])
    bare = plainly(scene, [program], "plainly-alone")
    for name, more in (("timed", {"profile": "resets", "mode": "profile"}), ("managed", {"more": {"WEFT_BACKING": "managed"}})):
        job = scene.job([program], name, priority=5, **more)
        job.wait(BOUND)
        same(bare, job)


def test_events_with_times_across_streams_of_priorities(scene):
    in_roles(scene, script("events.py"))


def test_graphs_that_change(scene):
    in_roles(scene, script("graphs.py"))


def test_graphs_that_choose_on_the_device(scene):
    in_roles(scene, script("conditionals.py"))


def test_all_kinds_of_memory(scene):
    in_roles(scene, script("memory.py"))


def test_memory_that_two_processes_share(scene):
    in_roles(scene, script("shares.py"))
    # The driver refuses to share managed memory: the job gets the error, weft prints the reason,
    # and both continue.
    job = scene.job(script("shares.py"), "managed", more={**PYTHON, "WEFT_BACKING": "managed"}, priority=5)
    scene.finish(job)
    assert job.stdout() == b"handle 1\n49\n", job.explain()
    says(job, "weft", "managed", "cannot be shared")


def driver_without(scene, name):
    """A copy of the driver in which look-ups of this name fail, as in a driver that is too old for
    it."""
    folder = scene.folder / "older"
    folder.mkdir()
    driver, name = paths.SIMGPU_CUDA.read_bytes(), name.encode()
    assert name in driver, name
    copy = folder / "libcuda.so.1"
    # As long as the old name, so that all else stays in its place.
    copy.write_bytes(driver.replace(name, b"x" * len(name)))
    # The device's program is looked for in the driver's folder.
    return {"LD_LIBRARY_PATH": str(folder), "WEFT_CUDA_LIBRARY": str(copy), "SIMGPU_DEVICE_BIN": str(paths.SIMGPU_DEVICE)}


def test_managed_memory_under_a_driver_without_the_newer_prefetch(scene):
    """Drivers of CUDA 12.0 and 12.1 prefetch to a device only by its number; later ones have that
    and the newer call."""
    older = driver_without(scene, "cuMemPrefetchAsync_v2")
    # Two contexts of 400 MiB leave room for one of the jobs, not for both: weft moves memory at
    # their turns.
    scene.device.settings["SIMGPU_MEMORY"] = str(1500 << 20)
    scene.running.touch()
    scene.broker.start()
    more = {**PYTHON, **older, "WEFT_BACKING": "managed", "SIMGPU_DEBUG": "2"}
    both = [scene.job(script("moves.py", scene.running), f"managed{n}", more=more, priority=5) for n in range(2)]

    def moved(job):
        row = scene.row(job) or {"prefetched": 0, "evicted": 0}
        return row["prefetched"] > 0 and row["evicted"] > 0

    assert jobs.wait_until(lambda: any(map(moved, both)), BOUND, step=0.1), [scene.row(job) for job in both]
    scene.running.unlink()
    for job in both:
        scene.finish(job)
        assert job.stdout() == b"7 19\n", job.explain()
        last = counters(scene, job)
        assert last["page_ops_refused"] == last["troubles"] == 0, last
        assert not any("cuMemPrefetchAsync_" in line for line in job.stderr().splitlines()), job.explain()
    says(both[0], "cuMemPrefetchAsync")


def test_a_job_that_shuts_itself_in(scene):
    """Few system calls are left to all its threads, and weft's own fail."""
    in_roles(scene, [compiled(scene, "sandboxed.c"), "errno"], attached=False)


def test_a_job_that_dies_of_other_calls(scene):
    """Few system calls are left to all its threads; weft's are those that docs/limits.md names."""
    in_roles(scene, [compiled(scene, "sandboxed.c"), "kill"])


def test_signals_while_launches_wait(scene):
    in_roles(scene, script("signals.py"))


def test_forks_while_threads_launch(scene):
    in_roles(scene, script("forks.py"), "background", "unqueued")


def test_a_daemon_that_closes_everything(scene):
    in_roles(scene, script("daemon.py"), "background", attached=False)


def test_a_child_is_given_no_descriptor(scene):
    in_roles(scene, script("children.py"), "background")


def test_a_launch_leaves_the_thread_as_it_was(scene):
    in_roles(scene, [compiled(scene, "steady_state.c", "-lm")])


def test_host_functions_that_block(scene):
    in_roles(scene, [compiled(scene, "host_functions.c")])


def test_a_host_that_only_looks(scene):
    in_roles(scene, [compiled(scene, "looks.c")])


def test_launches_that_must_fail_now(scene):
    in_roles(scene, [compiled(scene, "changes.c")])


def test_ends_of_all_kinds_while_threads_launch(scene):
    scene.broker.start()
    beside = scene.companion("beside", priority=0, pause=3000)
    for how, code in {"exit": 0, "_exit": 3, "abort": -6, "exec": 4, "signal": 5, "interrupt": 6}.items():
        bare = plainly(scene, script("ends.py", how), f"plainly-{how}")
        assert bare.process.returncode == code, bare.explain()
        for role in ("background", "unqueued"):
            job = scene.job(script("ends.py", how), f"{how}-{role}", more={**PYTHON, **queue(role)}, priority=6)
            job.wait(BOUND)
            same(bare, job)
    scene.finish_companions(beside)
