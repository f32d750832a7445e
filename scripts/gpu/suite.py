# SPDX-License-Identifier: MIT OR Apache-2.0
"""The suite: examines the machine, runs the phases in turn, keeps the budget and prints a summary.
"""

import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

from harness import jobs, paths

from . import bundle, leases, machine, phases, report, results, safety, supervise
from .keeper import Keeper
from .phase import Phase, TimeUp

# The keeper ends by itself this many seconds after the budget, if the suite did not end it.
KEPT_ON = 60.0

# Seconds reserved for the table at the end and for ending processes that are left.
RESERVE = 5.0

# A phase with fewer seconds is left out: it could not even start a job.
LEAST_SHARE = 8.0

# The most that facts and warm-up may take, as a part of the budget and in seconds. A cold machine
# reads PyTorch from a slow disk.
FACTS_PART, FACTS_MOST = 0.35, 150.0

# Phases that need the warm-up.
STARTS_TORCH = {"interception", "cost", "sharing", "record"}

# The most bytes of a log that comes back. The middle of a longer log has no use.
MOST_LOG = 4 << 20


def say(text):
    print(f"gpu-suite: {text}", file=sys.stderr, flush=True)


def extra_phases(texts):
    """Phases that a test adds: NAME=FILE, a Python file with a function run(phase)."""
    found = {}
    for text in texts:
        name, _, file = text.partition("=")
        found[name] = phases.Entry(name, 30, f"from {file}")
    return found


def load_extra(file):
    spec = importlib.util.spec_from_file_location("extra_phase", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run


def lease_of(arguments):
    return leases.ALL[arguments.lease] if arguments.lease else None


def choose(arguments):
    """The phases to run, in order. Exits with one line if a name is unknown."""
    known = {**phases.BY_NAME, **extra_phases(arguments.extra_phase)}
    if lease := lease_of(arguments):
        return [known[name]._replace(weight=step.seconds) for name, step in lease.steps.items()]
    if not arguments.only:
        return list(known.values())
    unknown = [name for name in arguments.only if name not in known]
    if unknown:
        sys.exit(f"gpu-suite: --only {unknown[0]}: no such phase; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(arguments.only)]


def allowed(chosen, arguments, simulated):
    """Removes phases that a real GPU must not run unasked. Exits if such a phase was named."""
    if simulated or arguments.managed:
        return chosen
    if safety.MEMORY in arguments.only:
        sys.exit(f"gpu-suite: --only {safety.MEMORY}: it uses managed memory, on a real GPU it runs only with --managed")
    return [entry for entry in chosen if entry.name != safety.MEMORY]


def told(arguments, name):
    """(words, options) of a phase. In a lease they are the lease's, but words of the caller have
    precedence.
    """
    lease = lease_of(arguments)
    step = lease.steps.get(name, leases.Step(0)) if lease else leases.Step(0)
    return arguments.case or list(step.words), {**step.options, "managed": arguments.managed}


def warm(chosen):
    """Whether a warm-up is worth its time: a phase of the run starts PyTorch."""
    return any(entry.name in STARTS_TORCH for entry in chosen)


def dry_run(arguments, chosen):
    """Prints every process that would be started, one JSON line each, and starts none of them.
    Without --simulated a real GPU is assumed.
    """
    simulated = arguments.simulated
    chosen = allowed(chosen, arguments, simulated)
    python, packages, version, _ = machine.choose_python(arguments.python)
    with tempfile.TemporaryDirectory(prefix="weft-gpu-", dir="/tmp") as folder:
        facts = {
            "simulated": simulated,
            "python": str(python),
            "python_version": version,
            "packages": packages,
            "machine": machine.about(),
            "driver": {},
            "caches": f"{folder}/caches",
        }
        for entry in [phases.FACTS, *chosen]:
            if entry.name not in phases.BY_NAME and entry is not phases.FACTS:
                continue
            words, options = told(arguments, entry.name)
            if entry is phases.FACTS:
                words, options = [], {"warm": warm(chosen)}
            place = Path(folder) / entry.name
            place.mkdir()
            phase = Phase(
                entry.name,
                writer=None,
                facts=facts,
                folder=place,
                out=place,
                deadline=time.monotonic() + arguments.budget,
                quick=arguments.quick,
                words=words,
                options=options,
            )
            for case, command, environment in entry.plan()(phase):
                managed = safety.managed_bytes(command, environment)
                line = {
                    "phase": entry.name,
                    "case": case,
                    "command": [str(part) for part in command],
                    "environment": {key: value for key, value in environment.items() if os.environ.get(key) != value},
                    "managed_bytes": "unbounded" if managed == math.inf else managed,
                }
                why = None if simulated else safety.refusal(entry.name, command, environment)
                print(json.dumps({**line, **({"refused": why} if why else {})}))
    print(json.dumps({"bounds": bounds(arguments, chosen), "travels_bytes": bundle.travelling(paths.TARGET) or "no bundle: run scripts/gpu-bundle", "travels_at_most": bundle.MOST_BYTES}))
    return 0


def bounds(arguments, chosen):
    """{phase: seconds at most}: the lease's bounds, otherwise shares of the budget."""
    if lease := lease_of(arguments):
        return {"facts": leases.FACTS_SECONDS, **{name: step.seconds for name, step in lease.steps.items()}}
    left, found = arguments.budget - RESERVE, {}
    for number, entry in enumerate(chosen):
        found[entry.name] = phases.share(left, entry, chosen[number + 1 :])
        left -= found[entry.name]
    return found


def survey(arguments, folder):
    """The facts of the run: {"simulated", "gpu", "folder", "python", ...}. Exits if --real finds no
    GPU.
    """
    real = {"error": "--simulated was given"}
    if not arguments.simulated:
        real = machine.driver(jobs.RealDevice())
    use_real = "error" not in real and not real.get("simulated")
    if arguments.real and not use_real:
        why = real.get("error") or f"{real.get('library')} is the simulated driver"
        sys.exit(f"gpu-suite: no real GPU: {why}")
    driver = real
    if not use_real:
        if not paths.SIMGPU_CUDA.exists():
            sys.exit(
                f"gpu-suite: no real GPU ({real.get('error', 'simulated driver')}) and no simulated one at {paths.SIMGPU_CUDA}: run scripts/gpu-bundle"
            )
        if not arguments.simulated:
            say(
                f"NO REAL GPU: {real.get('error', 'the simulated driver is on the library path')}; everything below is simulated"
            )
        place = folder / "look"
        place.mkdir()
        device = jobs.Device(place)
        driver = machine.driver(device)
        device.wait_gone()
        if "error" in driver:
            sys.exit(f"gpu-suite: the simulated GPU does not start: {driver['error']}")
    python, packages, version, trouble = machine.choose_python(arguments.python)
    if trouble:
        say(f"{python}: {trouble}")
    return {
        "simulated": not use_real,
        "no_real_gpu": None if use_real else real.get("error", "simulated driver"),
        "gpu": driver.get("name", "unknown"),
        "folder": machine.folder_name(driver.get("name", "unknown"), not use_real),
        "driver": driver,
        "python": str(python),
        "python_version": version,
        "packages": packages,
        "machine": machine.about(),
        "caches": str(folder / "caches"),
    }


def interrupted():
    """Records SIGTERM, SIGINT and SIGHUP for the supervisor. Returns the function that reports
    whether one came.
    """
    seen = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: seen.append(number))
    return lambda: bool(seen)


def main(arguments, began):
    chosen = choose(arguments)
    if arguments.list:
        print(report.listing(chosen, arguments.budget - RESERVE))
        return 0
    if arguments.dry_run:
        return dry_run(arguments, chosen)
    if arguments.lease and arguments.budget > leases.MOST:
        sys.exit(f"gpu-suite: --lease: --budget {arguments.budget:g}: a lease takes at most {leases.MOST:g} s")
    if arguments.budget < LEAST_SHARE + RESERVE:
        sys.exit(f"gpu-suite: --budget {arguments.budget:g}: a run takes at least {LEAST_SHARE + RESERVE:g} s")
    for needed in (paths.WEFT, paths.LIBWEFT):
        if not needed.exists():
            sys.exit(f"gpu-suite: {needed} is not there: run scripts/gpu-bundle where weft is built and take .gpu-bundle along")
    manifest = bundle.manifest_of(paths.TARGET)
    if manifest and (wrong := bundle.damaged(paths.TARGET, manifest)):
        sys.exit(f"gpu-suite: the bundle did not arrive whole: {', '.join(wrong)}")
    stop = interrupted()
    folder = Path(tempfile.mkdtemp(prefix="weft-gpu-", dir="/tmp"))
    try:
        return measure(arguments, began, chosen, manifest, stop, folder)
    finally:
        supervise.end_all(lambda: supervise.descendants(os.getpid()))
        shutil.rmtree(folder, ignore_errors=True)


def rehearse(arguments):
    """Runs the leases on the simulated GPU. Their files stay if --out names a folder; otherwise
    they are removed.
    """
    from . import rehearse as rehearsal

    if not LEAST_SHARE + RESERVE <= arguments.budget <= leases.MOST:
        sys.exit(f"gpu-suite: --rehearse: --budget {arguments.budget:g}: from {LEAST_SHARE + RESERVE:g} to {leases.MOST:g} s for each lease")
    # A signal passes on to the lease that runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("gpu-suite: stopped by a signal"))
    if arguments.out:
        code = rehearsal.main(arguments, arguments.out)
        print(f"archives: {arguments.out}/LEASE/lease-LEASE.tgz")
        return code
    with tempfile.TemporaryDirectory(prefix="weft-rehearsal-", dir="/tmp") as folder:
        return rehearsal.main(arguments, folder)


def measure(arguments, began, chosen, manifest, stop, folder):
    facts = survey(arguments, folder)
    chosen = allowed(chosen, arguments, facts["simulated"])
    home = arguments.out or paths.ROOT / "out" / "gpu-suite"
    # A lease brings back one file: a borrowed machine returns few.
    archive = home / f"lease-{arguments.lease}.tgz" if arguments.lease else None
    out = (folder / "results" if archive else home) / facts["folder"]
    home.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    run = name_of_run(out)
    file, log = out / f"{run}.jsonl", out / f"{run}.log"
    start = time.time()
    writer = results.Writer(file, start)
    writer.write(
        "run",
        run=run,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        commit=(manifest or {}).get("commit") or bundle.git("rev-parse", "HEAD") or "unknown",
        changed=(manifest or {}).get("changed"),
        budget=arguments.budget,
        phases=[entry.name for entry in chosen],
        lease=arguments.lease,
        quick=arguments.quick,
        words=arguments.case or None,
        **{
            key: facts[key]
            for key in ("simulated", "no_real_gpu", "gpu", "driver", "python", "python_version", "packages", "machine")
        },
    )
    kind = "SIMULATED GPU" if facts["simulated"] else "GPU"
    say(f"{kind} {facts['gpu']}; results in {file}")
    say(
        f"python {facts['python']} {facts['python_version']}: "
        + (", ".join(f"{k} {v}" for k, v in facts["packages"].items()) or "no packages")
    )
    deadline = began + arguments.budget - RESERVE
    run_ = SimpleNamespace(
        arguments=arguments, deadline=deadline, stop=stop, facts=facts, folder=folder, out=out, file=file, log=log, start=start, wrong=False
    )
    with keeper(run_, arguments.budget - (time.monotonic() - began) + KEPT_ON) as kept:
        results.Writer(file, start, phases.FACTS.name).write("fact", name="keeper", data=kept.said)
        if not stop():
            # A rehearsal may have two busy cores: PyTorch took more than the 13 s that were left.
            most = leases.FACTS_SECONDS if archive and not facts["simulated"] else FACTS_MOST
            share = min(most, FACTS_PART * (deadline - time.monotonic()))
            play(run_, phases.FACTS, share, [], {"warm": warm(chosen)})
        for number, entry in enumerate(chosen):
            one_phase(run_, entry, chosen[number + 1 :])
            if archive:
                pack(archive, out.parent)
                run_.wrong = run_.wrong or data_differ(file)
        clocks_after(run_)
    writer.write("end", seconds=round(time.monotonic() - began, 1), stopped=stop())
    writer.close()
    cut(log)
    lines = results.read(file)
    print(report.table(lines))
    missed = report.missed(lines)
    if lease := lease_of(arguments):
        pack(archive, out.parent)
        print(f"\nlease {lease.name}: if results differ: {lease.differs}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report.summary(lines), indent=2) + "\n")
    if arguments.case and not any(line["kind"] == "case" and line["phase"] != phases.FACTS.name for line in lines):
        missed.append(f"--case {' '.join(arguments.case)}: no case has one of these words in its name; --dry-run lists the cases")
    print(f"\nresults: {archive or ', '.join(sorted(path.name for path in out.glob(run + '*'))) + f' in {out}'}")
    for line in missed:
        print(f"missed: {line}")
    return 1 if arguments.check and missed else 0


def pack(archive, folder):
    """Packs all results so far into one file. The old file stays until the new one is complete."""
    new = archive.with_suffix(".new")
    with tarfile.open(new, "w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                tar.add(path, path.relative_to(folder))
    os.replace(new, archive)


def data_differ(file):
    """Whether weft changed a client's data. If it did, no measurement of it matters."""
    return any(line.get("name") == "data.differing" and line["value"] for line in results.read(file) if line["kind"] == "value")


def name_of_run(out):
    """A name that no other run of this GPU has: its start time."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    number = 1
    while (out / f"{stamp}{'' if number == 1 else f'-{number}'}.jsonl").exists():
        number += 1
    return stamp if number == 1 else f"{stamp}-{number}"


def keeper(run_, seconds):
    """The process that keeps the driver initialised. With a simulated GPU it has its own device."""
    place = run_.folder / "keeper"
    place.mkdir()
    device = jobs.Device(place) if run_.facts["simulated"] else jobs.RealDevice()
    # Avoids another user's MPS daemon.
    return Keeper({**jobs.clean_environment(), **device.environment(), "CUDA_MPS_PIPE_DIRECTORY": str(place / "no-mps")}, seconds)


def clocks_after(run_):
    """Records the clocks after the run, for comparison with `clocks_before`. Only for a real GPU.
    """
    if run_.facts["simulated"] or run_.stop():
        return
    from .phases import facts

    try:
        data = facts.clocks({**jobs.clean_environment(), **jobs.RealDevice().environment()})
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        data = {"error": str(error)}
    results.Writer(run_.file, run_.start, phases.FACTS.name).write("fact", name="clocks_after", data=data)


def one_phase(run_, entry, later):
    left = run_.deadline - time.monotonic()
    share = phases.share(left, entry, later) if left > 0 else 0.0
    if run_.stop() or run_.wrong or share < LEAST_SHARE:
        why = "the suite was stopped by a signal" if run_.stop() else "data differ under weft" if run_.wrong else f"{max(left, 0):.0f} s were left for it and the following phases"
        results.Writer(run_.file, run_.start, entry.name).write("phase", verdict=results.LEFT_OUT, why=why, seconds=0)
        say(f"{entry.name}: left out: {why}")
        return
    say(f"{entry.name}: {share:.0f} s of {left:.0f} s: {entry.about}")
    play(run_, entry, share, *told(run_.arguments, entry.name))


def play(run_, entry, share, words, options):
    """Runs one phase in its own process, and records its verdict."""
    arguments, folder, log = run_.arguments, run_.folder, run_.log
    writer = results.Writer(run_.file, run_.start, entry.name)
    try:
        place = folder / entry.name
        place.mkdir()
        order = folder / f"{entry.name}.order"
        extra = dict(text.partition("=")[::2] for text in arguments.extra_phase)
        order.write_text(
            json.dumps(
                {
                    "name": entry.name,
                    "extra": extra.get(entry.name),
                    "facts": run_.facts,
                    "folder": str(place),
                    "out": str(run_.out),
                    "file": str(run_.file),
                    "start": run_.start,
                    "seconds": share - min(supervise.GRACE, share / 4) - 1.0,
                    "quick": arguments.quick,
                    "words": words,
                    "options": options,
                }
            )
        )
        command = [sys.executable, paths.ROOT / "scripts" / "gpu-suite", "--run-phase", order]
        with open(log, "ab") as text:
            text.write(f"== {entry.name}\n".encode())
        own_log = folder / f"{entry.name}.log"
        outcome = supervise.run(command, os.environ, share, own_log, stop=run_.stop)
        with open(log, "ab") as text:
            text.write(own_log.read_bytes())
        verdict_of_phase(writer, run_.file, entry, outcome, run_.stop())
        shutil.rmtree(place, ignore_errors=True)
    finally:
        writer.close()


def verdict_of_phase(writer, file, entry, outcome, stopped):
    """Writes the verdict of a phase, from its own cases and from the end of its process."""
    writer.mend()
    cases = [line for line in results.read(file) if line["kind"] == "case" and line.get("phase") == entry.name]
    by = {
        verdict: [case["name"] for case in cases if case["verdict"] == verdict]
        for verdict in (results.OK, results.FAILED, results.SKIPPED, results.LEFT_OUT)
    }
    why = []
    if outcome.killed:
        why.append("it overran its share and was killed")
    elif stopped:
        why.append("the suite was stopped by a signal")
    elif outcome.code == TIME_UP:
        why.append("its time ran out before it was done")
    elif outcome.code != 0:
        why.append(f"its process ended with {outcome.code}")
    if by[results.FAILED]:
        of = [f"{len(names)} of {cause}" for cause, names in report.causes(cases).items()]
        why.append(f"{len(by[results.FAILED])} cases failed ({'; '.join(of[:3])}): {', '.join(by[results.FAILED][:8])}")
    if by[results.LEFT_OUT]:
        why.append(f"{len(by[results.LEFT_OUT])} cases left out: {', '.join(by[results.LEFT_OUT][:8])}")
    if not by[results.OK] and not by[results.FAILED] and entry is not phases.FACTS:
        skipped = sorted({case.get("why", "") for case in cases if case["verdict"] == results.SKIPPED})
        why.append("nothing was tried" + (f": {'; '.join(skipped)[:300]}" if skipped else ""))
    failed = outcome.killed or by[results.FAILED] or outcome.code not in (0, TIME_UP)
    nothing = not by[results.OK] and not failed and entry is not phases.FACTS
    verdict = results.FAILED if failed else results.LEFT_OUT if nothing else results.OK
    writer.write(
        "phase",
        verdict=verdict,
        why="; ".join(why) or None,
        partly=bool(by[results.LEFT_OUT]) or outcome.code == TIME_UP or None,
        seconds=round(outcome.seconds, 1),
        cases={verdict: len(names) for verdict, names in by.items()},
        causes=report.causes(cases) or None,
        ended_by_force=outcome.left_behind or None,
        tail=results.tail(outcome.log.read_text(errors="replace")) if failed else None,
    )
    say(f"{entry.name}: {verdict} after {outcome.seconds:.0f} s" + (f": {'; '.join(why)}" if why else ""))


# The exit code of a phase that ended because its time was over.
TIME_UP = 75


def run_phase(order):
    """The child's side: one phase in this process."""
    order = SimpleNamespace(**json.loads(Path(order).read_text()))
    writer = results.Writer(order.file, order.start, order.name)

    def told(*_):
        # Only once: a second signal must not interrupt the clean-up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise TimeUp

    signal.signal(signal.SIGTERM, told)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    deadline = time.monotonic() + order.seconds
    phase = Phase(
        order.name,
        writer=writer,
        facts=order.facts,
        folder=order.folder,
        out=order.out,
        deadline=deadline,
        quick=order.quick,
        words=order.words,
        options=order.options,
    )
    if not phase.simulated:
        safety.guard(order.name)
    code = 0
    try:
        entry = {**phases.BY_NAME, phases.FACTS.name: phases.FACTS}.get(order.name)
        (load_extra(order.extra) if order.extra else entry.function())(phase)
    except TimeUp:
        code = TIME_UP
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    # A thread that waits for a job would keep this process alive. The supervisor ends the jobs.
    os._exit(code)


def cut(log):
    """Keeps the end of a log that grew too long to bring back."""
    if log.exists() and log.stat().st_size > MOST_LOG:
        with open(log, "rb") as file:
            file.seek(-MOST_LOG, os.SEEK_END)
            kept = file.read()
        log.write_bytes(b"(cut)\n" + kept)
