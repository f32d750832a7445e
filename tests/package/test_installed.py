# SPDX-License-Identifier: MIT OR Apache-2.0
"""Each package is installed, used on the simulated GPU, and removed without trace.

The packages are made of the build of scripts/layout, so they run here and not on an older glibc:
test_package.py is for that. A case installs into a folder of its own.
"""

import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
from fixtures import compiled
from harness import jobs, package, paths
from harness.ci import prose

# Seconds for one command, on two busy cores.
BOUND = 120
GUEST = paths.CLIENTS / "guest"
# A CUDA job that prints its result, and weft's figures of it meanwhile. 49 is right.
PROGRAM = """
import subprocess, sys
from plain import Gpu
print(Gpu().work(50))
print(subprocess.run([sys.argv[1], "status", "--json"], capture_output=True, text=True).stdout)
"""
MIB = 2**20
# Most bytes of the tarball: what a cluster's administrator copies to each node.
MOST_BYTES = 10 * MIB


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The folder with the three packages."""
    setup = [paths.ROOT / "scripts" / "setup", "wheel"]
    subprocess.run(setup, stdin=subprocess.DEVNULL, check=True, timeout=BOUND)
    out = tmp_path_factory.mktemp("packages")
    package.make(paths.BUILT, out, as_built=True)
    return out


def run(*command, code=0, **more):
    """Runs a command. `code`: its exit code."""
    words = [str(word) for word in command]
    bounded = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": BOUND}
    done = subprocess.run(words, **bounded, **more, check=False)
    said = f"{words}: exit {done.returncode}, not {code}: {done.stdout}{done.stderr}"
    assert done.returncode == code, said
    return done


def used(weft, scene):
    """The installed command runs a job, which computes the same and is seen."""
    own = {"HOME": str(scene.folder), "PYTHONPATH": str(GUEST)}
    base = {**jobs.clean_environment(), **scene.device.environment(), **own}
    socket = {"WEFT_SOCKET": str(scene.folder / "installed.sock")}
    environment = {**base, **socket, "WEFT_STATE_DIR": str(scene.folder / "state")}
    assert re.fullmatch(r"weft \d+\.\d+\.\d+\n", run(weft, "--version").stdout)
    job = [sys.executable, "-c", PROGRAM, weft]
    done = run(weft, "run", "--priority", "3", "--", *job, env=environment)
    answer, told = done.stdout.split("\n", 1)
    assert answer == "49", done.stdout
    (client,) = json.loads(told)["clients"]
    assert (client["launches"], client["priority"]) == (50, 3), client
    # A broker that is not of this package would have answered as well.
    broker = os.readlink(f"/proc/{json.loads(told)['broker']['pid']}/exe")
    assert Path(broker) == Path(weft).resolve(), broker
    run(weft, "stop", env=environment)
    return environment


def tree(folder, without=()):
    """Every path in there."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {path for path in found if not any(path.startswith(part) for part in without)}


def links_lead_into(folder):
    """Every relative link of the documents in there resolves inside the folder."""
    documents = list(folder.rglob("*.md"))
    broken = [line for file in documents for line in prose.broken_links(folder, file)]
    assert documents and not broken, broken


def documents_lead_somewhere(folder):
    """And have the parts that an administrator needs."""
    links_lead_into(folder)
    for name in ("grafana/weft.json", "prometheus/rules.yml", "prometheus/scrape.yml"):
        assert (folder / name).stat().st_size > 100, name
    sample = (folder / "examples" / "weft.toml").read_text()
    assert "[broker]" in sample and "metrics = " in sample, sample


def notices_of_others(text):
    """Packages that weft is linked with whose licence asks that its text goes along."""
    for name, words in (("libloading", "Simonas Kazlauskas"), ("signal-hook", "MIT"), ("ratatui", "MIT")):
        assert re.search(rf"^{name} \d", text, re.M) and words in text, name


def test_the_tarball_is_unpacked_and_deleted(scene, made):
    assert package.tarball(made).stat().st_size <= MOST_BYTES
    place = scene.folder / "opt"
    place.mkdir()
    with tarfile.open(package.tarball(made)) as archive:
        archive.extractall(place, filter="fully_trusted")
    unpacked = place / package.folder(made).name
    library = (unpacked / "lib" / "libcuda.so.1").resolve()
    assert library == unpacked / "libweft.so", library
    before = tree(unpacked)
    used(unpacked / "weft", scene)
    assert tree(unpacked) == before, tree(unpacked) ^ before
    documents_lead_somewhere(unpacked)
    notices_of_others((unpacked / package.NOTICES).read_text())
    page = (unpacked / "share/man/man1/weft.1").read_text()
    for section in ("ENVIRONMENT", "FILES", "EXIT STATUS", "SEE ALSO"):
        assert f".SH {section}\n" in page, section
    page = (unpacked / "share/man/man1/weft-run.1").read_text()
    assert page.count(".SH") >= 4 and "\\-\\-priority" in page, page[:500]
    shutil.rmtree(unpacked)
    assert tree(place) == set()


def test_the_deb_is_installed_and_purged(scene, made):
    root = scene.folder / "root"
    own = "var/lib/dpkg"
    for name in ("info", "updates", "triggers"):
        (root / own / name).mkdir(parents=True)
    (root / own / "status").touch()
    # No other package is in this root, so its dependencies are missing there.
    dpkg = ["dpkg", f"--root={root}", "--force-depends", "--force-script-chrootless"]
    dpkg += ["--log=/dev/null", "--force-not-root"]
    before = tree(root, without=[own])
    run(*dpkg, "--install", package.deb(made))
    listed = run(*dpkg, "--status", "weft").stdout
    assert "Status: install ok installed" in listed, listed
    documents_lead_somewhere(root / "usr/share/doc/weft")
    notices_of_others((root / "usr/share/doc/weft/copyright").read_text())
    used(root / "usr/bin/weft", scene)
    # Files that an administrator and a broker make.
    for place in ("etc/weft/weft.toml", "var/lib/weft/history.sqlite"):
        (root / place).parent.mkdir(parents=True)
        (root / place).touch()
    for shell, place in package.COMPLETIONS.items():
        text = (root / "usr/share" / place).read_text()
        assert "history" in text and "priority" in text, (shell, text[:200])
    run("bash", "-n", root / "usr/share" / package.COMPLETIONS["bash"])
    run(*dpkg, "--purge", "weft")
    left = tree(root, without=[own]) - before
    # dpkg itself leaves the folders of a root that nothing else is in.
    assert not [path for path in left if not (root / path).is_dir()], left


# Ten requests, two at a time, and as many steps that fail.
MARKS = """
import subprocess, sys, threading, time, weft_gpu
from plain import Gpu
gpu = Gpu()
gpu.work(5)
@weft_gpu.request()
def answer():
    gpu.enter()
    gpu.work(5)
    time.sleep(0.02)
pairs = [[threading.Thread(target=answer) for _ in range(2)] for _ in range(5)]
for pair in pairs:
    for thread in pair: thread.start()
    for thread in pair: thread.join()
for _ in range(10):
    try:
        with weft_gpu.step():
            raise KeyError
    except KeyError:
        pass
print(subprocess.run([sys.argv[1], "status", "--json"], capture_output=True, text=True).stdout)
"""


def marked_requests_are_measured(python, weft, environment):
    plainly = run(python, "-c", MARKS, weft, env=environment)
    assert json.loads(plainly.stdout)["clients"] == [], "marks put no process under weft"
    words = [weft, "run", "--", python, "-c", MARKS, weft]
    (client,) = json.loads(run(*words, env=environment).stdout)["clients"]
    alone, beside = client["requests"]["alone"], client["requests"]["beside"]
    assert beside is None and alone["count"] == 20, client["requests"]
    # Half of them sleep for 20 ms, half do nothing.
    assert alone["mean_ns"] > 9e6 and alone["p99_ns"] > 19e6, alone
    assert alone["p50_ns"] < 19e6, alone


def a_library_that_is_preloaded_plainly_is_found(scene, weft, environment):
    """A program that opens the driver in a scope of its own, as Taichi does, finds it: that is
    lib/'s work."""
    folder = Path(weft).parent
    for name in package.LINKS:
        link = folder / "lib" / name
        assert link.is_symlink() and link.samefile(folder / "libweft.so"), link
    source = paths.ROOT / "tests" / "regressions" / "programs" / "deep.c"
    library = compiled.program(scene.folder, source, "-DLIBRARY", "-shared", "-fPIC")
    library = library.rename(library.with_suffix(".so"))
    opens = compiled.program(scene.folder, source)
    preloaded = {**environment, "LD_PRELOAD": str(folder / "libweft.so")}
    assert run(opens, library, "deepbind", "libcuda.so.1", env=preloaded).stdout == "weft's\n"


# A stand-in for ipykernel: it needs no Jupyter, and its words are a kernel's.
KERNEL = """
import json, subprocess, sys
from plain import Gpu
assert json.load(open(sys.argv[1])) == {"key": "k"}
print(Gpu().work(50))
print(subprocess.run([sys.argv[2], "status", "--json"], capture_output=True, text=True).stdout)
"""


def a_notebooks_kernel_is_a_job(python, scene, environment):
    """Installed twice it is the same, each notebook has its name, and the plain kernel stays."""
    kernels = Path(run(python, "-c", "import sys; print(sys.prefix)").stdout.strip())
    kernels = kernels / "share" / "jupyter" / "kernels"
    program = run(python, "-c", "import weft_gpu; print(weft_gpu.program())").stdout.strip()
    plain = kernels / "python3"
    plain.mkdir(parents=True)
    words = [str(python), "-c", KERNEL, "{connection_file}", program]
    text = json.dumps({"argv": words, "display_name": "Python 3", "metadata": {"debugger": True}})
    (plain / "kernel.json").write_text(text)
    (plain / "logo-32x32.png").write_bytes(b"a picture")
    own = {**environment, "HOME": str(scene.folder)}
    for more, place in (([], kernels), (["--user"], scene.folder / ".local/share/jupyter/kernels")):
        install = [python, "-m", "weft_gpu.jupyter", "install", *more]
        once = run(*install, env=own).stdout.strip()
        made = json.loads(Path(once, "kernel.json").read_text())
        again = run(*install, "--priority", "idle", env=own).stdout.strip()
        assert Path(once) == Path(again) == place / "python3-weft", (once, again)
        remade = json.loads(Path(once, "kernel.json").read_text())
        assert remade["argv"] == [word.replace("=low", "=idle") for word in made["argv"]], remade
        assert made["argv"][-5:] == words and made["metadata"] == {"debugger": True}, made
        assert made["display_name"] == "Python 3 under weft", made
        copied = {path.name for path in Path(once).iterdir()}
        assert copied == {"kernel.json", "logo-32x32.png"}, copied
        assert not list(place.glob(".weft-*")), "what it was made in is left"
    assert (plain / "kernel.json").read_text() == text
    connection = scene.folder / "connection.json"
    connection.write_text('{"key": "k"}')
    started = [word.replace("{connection_file}", str(connection)) for word in made["argv"]]
    for notebook, name in (("/home/ann/Fine tuning.ipynb", "Fine tuning.ipynb"), ("", None)):
        told = run(*started, env={**own, "JPY_SESSION_NAME": notebook}).stdout
        answer, told = told.split("\n", 1)
        (client,) = json.loads(told)["clients"]
        assert (answer, client["launches"], client["priority"]) == ("49", 50, 7), told
        assert name is None or client["name"] == name, client
    for wrong in (["--priority", "urgent"], ["--kernel", "python3-weft"], ["--kernel", "no"]):
        refused = run(python, "-m", "weft_gpu.jupyter", "install", *wrong, env=own, code=1).stderr
        assert refused.startswith("weft: ") and refused.count("\n") == 1, refused
    for more in ([], ["--user"]):
        run(python, "-m", "weft_gpu.jupyter", "remove", *more, env=own)
    assert tree(kernels) == {"python3", "python3/kernel.json", "python3/logo-32x32.png"}
    shutil.rmtree(kernels.parents[1])


def test_the_wheel_is_installed_and_uninstalled(scene, made):
    venv = scene.folder / "venv"
    run(sys.executable, "-m", "venv", venv)
    python = venv / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    # A foreign module `weft`, as there is one: it is not touched.
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "weft").mkdir()
    (site / "weft" / "__init__.py").write_text("whose = 'theirs'\n")
    before = tree(venv, without=["pyvenv.cfg"])
    run(*pip, "install", "--no-index", "--no-deps", package.wheel(made))
    (notices,) = site.glob(f"weft_gpu-*.dist-info/licenses/{package.NOTICES}")
    notices_of_others(notices.read_text())
    # pip's own command is a script; it becomes the program.
    (program,) = run(python, "-c", "import weft_gpu; print(weft_gpu.program())").stdout.split()
    environment = used(program, scene)
    words = run(venv / "bin" / "weft", "--version").stdout
    assert words == run(program, "--version").stdout
    check = f"""
import os, subprocess, sys, weft, weft_gpu
assert weft.whose == "theirs" and weft_gpu.__version__
assert weft_gpu.lib_path().name == "libweft.so" and weft_gpu.lib_path().exists()
plainly = dict(os.environ)
more = weft_gpu.env(priority=2, quiet=True)
assert os.environ == plainly, "importing or asking changed this process"
assert str(weft_gpu.lib_path()) in more["LD_PRELOAD"] and more["WEFT_PRIORITY"] == "2", more
assert weft_gpu.env()["WEFT_GANG"] != weft_gpu.env()["WEFT_GANG"], "two jobs are one"
for wrong, kind in (({{"prioriy": 1}}, TypeError), ({{"priority": 77}}, weft_gpu.WeftError)):
    try:
        weft_gpu.env(**wrong)
    except kind as why:
        assert "\\n" not in str(why) and "prior" in str(why), why
    else:
        sys.exit(f"{{wrong}} was taken")
seen = weft_gpu.status()
assert seen["clients"] == [] and seen._repr_html_() == f"<pre>{{seen}}</pre>", seen
assert "no job is attached" in str(seen) and not weft_gpu.active()
served = "from plain import Gpu; import weft_gpu; Gpu().work(1); assert weft_gpu.active()"
subprocess.run([sys.executable, "-c", served], env={{**os.environ, **more}}, check=True)
moved = '''from plain import Gpu
import weft_gpu
gpu = Gpu()
memory = gpu.memory(8 << 20)
gpu.work(1, memory=memory, first=7)
weft_gpu.pause()
(row,) = weft_gpu.status()["clients"]
assert row["eviction"]["state"] == "evicted", row
weft_gpu.resume()
weft_gpu.pause(wake="on-launch")
assert weft_gpu.status()["clients"][0]["eviction"]["cause"] == "idle"
assert gpu.download(memory) == [7] * 256'''
movable = {{**os.environ, **weft_gpu.env(backing="movable")}}
subprocess.run([sys.executable, "-c", moved], env=movable, check=True)
job = [sys.executable, "-c", {PROGRAM!r}, str(weft_gpu.program())]
print(subprocess.check_output(job, env={{**os.environ, **more}}, text=True))
"""
    answer, told = run(python, "-c", check, env=environment).stdout.split("\n", 1)
    (client,) = json.loads(told)["clients"]
    assert (answer, client["launches"], client["priority"]) == ("49", 50, 2), told
    marked_requests_are_measured(python, program, environment)
    a_library_that_is_preloaded_plainly_is_found(scene, program, environment)
    a_notebooks_kernel_is_a_job(python, scene, environment)
    run(program, "stop", env=environment)
    run(*pip, "uninstall", "--yes", "weft-gpu")
    left = tree(venv, without=["pyvenv.cfg"]) - before
    assert not [path for path in left if "__pycache__" not in path], left


CONTAINERFILE = paths.ROOT / "deploy" / "kubernetes" / "Containerfile"


def test_the_kubernetes_image_is_built_by_the_commands_in_its_file(scene, made):
    """Without an engine or a registry: each command is right, and each file there to be copied.

    The test repeats the effect of COPY and RUN of `podman build` in a folder.
    """
    text = CONTAINERFILE.read_text()
    packed, built, image = [shlex.split(line[4:]) for line in text.splitlines() if line.startswith("#   ")]
    program = packed.pop(0)
    loader = SourceFileLoader("package_command", str(paths.ROOT / program))
    command = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(command)
    given = command.options().parse_args(packed)
    assert not given.as_built, "containers with an older glibc load it, too"
    assert built[:3] == ["cargo", "build", "--release"], built
    manifest = paths.ROOT / built[built.index("--manifest-path") + 1]
    assert (paths.ROOT / image[image.index("-f") + 1]) == CONTAINERFILE and image[-1] == ".", image
    variables = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.M))
    assert paths.ROOT / variables["TARBALL"] == package.folder(), variables
    plugin = paths.ROOT / variables["PLUGIN"]
    name = tomllib.loads(manifest.read_text())["package"]["name"]
    assert plugin == manifest.parent / "target" / "release" / name, plugin
    # The outputs of both commands lie in other folders here.
    standing = scene.folder / "plugin"
    standing.touch()
    places = {"${TARBALL}": str(package.folder(made)), "${PLUGIN}": str(standing)}
    root = scene.folder / "image"
    for line in re.findall(r"^COPY (.+)$", text, re.M):
        for variable, place in places.items():
            line = line.replace(variable, place)
        *sources, target = line.split()
        place = root / target.lstrip("/")
        for source in (Path(found) for name in sources for found in glob.glob(name)):
            if source.is_dir():
                shutil.copytree(source, place, symlinks=True)
            else:
                file = place / source.name if target.endswith("/") else place
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, file)
    notices_of_others((root / "usr/share/doc/weft" / package.NOTICES).read_text())
    (link,) = re.findall(r"^RUN ln -s (\S+) (\S+)$", text, re.M)
    (root / link[1].lstrip("/")).symlink_to(link[0])
    assert run(root / "usr/bin/weft", "--version").stdout.startswith("weft ")
    for name in package.LINKS:
        assert (root / "usr/lib/weft/lib" / name).samefile(root / "usr/lib/weft/libweft.so"), name


def test_the_plugins_package_says_for_which_slurm_it_is(tmp_path):
    """Any file is packed: no plugin is built for this, and tests/cluster loads the real one."""
    header = tmp_path / "slurm_version.h"
    header.write_text("#define SLURM_VERSION_NUMBER 0x180b02\n")
    plugin = paths.SIMGPU_LIB / "libnvidia-ml.so.1"
    file = package.make_slurm_deb(plugin, header, tmp_path)
    assert file.name == f"weft-slurm_{package.version()}_amd64_slurm-24.11.deb"
    fields = package.run("dpkg-deb", "--field", file)
    for line in (f"Depends: weft (= {package.version()}), libc6 (>= 2.", "(<< 24.11.99)"):
        assert line in fields, fields
    assert "@" not in fields.replace("weft@localhost", ""), fields
    names = package.run("dpkg-deb", "--contents", file)
    assert "./usr/lib/weft/weft_slurm.so" in names and "examples/plugstack.conf" in names, names
    package.run("dpkg-deb", "--extract", file, tmp_path / "root")
    links_lead_into(tmp_path / "root/usr/share/doc/weft-slurm")
    header.write_text("#define OTHER 1\n")
    with pytest.raises(package.Failed):
        package.make_slurm_deb(plugin, header, tmp_path)
