# SPDX-License-Identifier: MIT OR Apache-2.0
"""Background jobs without a profile next to a foreground job that leaves half of the device: the
progress of their work under each policy.

The foreground job works for 1.2 ms and pauses for 1.5. A background job's step is some kernels of
2.5 us, host work, and a synchronisation: the host sees the end of its last kernel only when it
returns to it. A policy must not keep the job away because of that late end. `scripts/bench
starving` runs the whole grid, tests/regressions a few shapes of it.
"""

import json
import subprocess

from .. import jobs, paths

COMPANION = paths.BUILT / "weft-test-companion"
PROGRAM = paths.ROOT / "tests" / "regressions" / "programs" / "starving.c"
KERNELS = paths.ROOT / "tests" / "simgpu" / "driver" / "src" / "kernels" / "simgpu.ptx"

# The foreground job: kernels per burst, device time of each, and the pause after them.
BURST, KERNEL, PAUSE = 8, 150_000, 1_500
DEVICE = f"""[[kernel]]
name = "simgpu_fill"
grid = [1, 1, 1]
block = [32, 1, 1]
ns = {KERNEL}

[default]
base_ns = 2500
"""

# The grid: kernels a step, microseconds of host work, background jobs.
STEPS = (1, 2, 5, 10, 30)
HOST = (100, 200, 300, 600, 1_000, 1_200, 1_500, 2_000, 3_000, 5_000)
JOBS = (1, 2, 3)

# Bound for the host's clock and scheduler, s. It does not judge a policy.
BOUND = 60.0


def program(folder, kernels=KERNELS):
    """Builds the background job in `folder`. It reads its kernels from the given file."""
    built = folder / "starving"
    command = ["cc", "-O1", "-o", built, PROGRAM, f'-DKERNELS="{kernels}"', "-ldl"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=BOUND, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return built


class Stage:
    """A device with its foreground job under one policy. Background jobs come and go."""

    def __init__(self, folder, policy, program, *, queue=True, end="stream", trace=False, log=None):
        """`end`: how the foreground job waits at the end of a burst, see weft-test-companion."""
        self.end = end
        self.folder = folder / policy
        self.folder.mkdir()
        self.program, self.queue = program, queue
        settings = self.folder / "device.toml"
        settings.write_text(DEVICE)
        self.device = jobs.Device(self.folder, config=settings, log=log)
        self.broker = jobs.Broker(self.folder, self.device, policy=policy, trace=trace)
        self.running, self.number = self.folder / "running", 0

    def __enter__(self):
        self.running.touch()
        self.broker.start()
        ready = self.folder / "ready"
        command = [COMPANION, "--while", self.running, "--ready", ready, "--burst", BURST, "--pause", PAUSE, "--end", self.end, "--result", self.folder / "foreground.json"]
        self.foreground = self.job("foreground", command, priority=0)
        if not jobs.wait_until(lambda: ready.exists() or not self.foreground.running(), BOUND) or not self.foreground.running():
            raise RuntimeError("the foreground job did not start\n" + self.foreground.explain())
        return self

    def __exit__(self, *_):
        self.running.unlink(missing_ok=True)
        self.foreground.wait(BOUND)
        self.broker.stop()

    def job(self, name, command, *, priority, **more):
        environment = {**jobs.clean_environment(), **self.device.environment(), **jobs.preload(self.broker.variables(), priority=priority)}
        return jobs.Job(command, environment={**environment, **more, "WEFT_QUEUE": "on" if self.queue else "off"}, folder=self.folder, name=name)

    def play(self, kernels, host, count, *, warmup, seconds):
        """Runs `count` background jobs at once. Returns their steps a second in total, and the
        longest step of any.
        """
        self.number += 1
        words = [self.program, kernels, host, warmup, seconds]
        playing = [self.job(f"background{self.number}-{at}", words, priority=5) for at in range(count)]
        told = []
        for job in playing:
            code = job.wait(BOUND + warmup + seconds)
            if code != 0:
                raise RuntimeError(job.explain())
            told.append(json.loads(job.stdout()))
        return {"rate": sum(one["steps"] / one["seconds"] for one in told), "worst": max(one["worst"] for one in told)}
