"""What a device is, and who else has it: MPS as each client's driver tells it, other brokers, processes of other pid namespaces."""

import shutil
import subprocess

from stage import BOUND, finding, paths
from harness import jobs
from harness.scene import COMPANION, weft


def fake_daemon(scene):
    """A process that is called as NVIDIA's MPS daemon is."""
    command = ["bash", "-c", "exec -a nvidia-cuda-mps-control sleep 600"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def device(scene):
    """The one device of the broker, once a client has said how it shares it."""

    def said():
        return next((device for device in scene.status()["broker"]["devices"] if device["under_mps"] + device["not_under_mps"] > 0), None)

    assert jobs.wait_until(lambda: said() is not None, BOUND, step=0.1), scene.status()["broker"]["devices"]
    return said()


def alone(scene, words, **more):
    """What the device's words and its cost of switching are while one such client is there."""
    client = scene.companion(f"one{scene.number}", more=more)
    found = device(scene)
    client.terminate()
    assert jobs.wait_until(lambda: not scene.status()["clients"], BOUND, step=0.1), client.explain()
    assert (found["under_mps"], found["not_under_mps"]) == words, found
    return found["core"]["switch_cost"]


@finding("hardware-F5")
def a_device_is_under_mps_where_its_clients_say_so(scene):
    daemon = fake_daemon(scene)
    try:
        scene.broker.start()
        # A daemon that serves somebody else is no reason.
        assert alone(scene, (0, 1)) > 0
        # The driver's word is, in whatever namespace its daemon runs.
        assert alone(scene, (1, 0), SIMGPU_MODE="mps") == 0
        # A driver that does not know the question leaves the daemon's process to be looked for.
        assert alone(scene, (1, 0), SIMGPU_ATTRIBUTES="132") == 0
    finally:
        daemon.kill()
        daemon.wait()


@finding("hardware-F5")
def one_client_that_is_not_under_mps_makes_the_device_one_that_switches(scene):
    scene.broker.start()
    under = scene.companion("under", more={"SIMGPU_MODE": "mps"})
    assert device(scene)["core"]["switch_cost"] == 0
    assert "shared under MPS" in weft(scene, "status").stdout
    other = scene.companion("other", more={"SIMGPU_MODE": "timeslice"})
    assert jobs.wait_until(lambda: device(scene)["not_under_mps"] == 1, BOUND, step=0.1), device(scene)
    assert device(scene)["core"]["switch_cost"] > 0, device(scene)
    page = weft(scene, "status").stdout
    assert "1 of its jobs share it under MPS and 1 do not" in page, page
    doctor = weft(scene, "doctor").stdout
    assert "mps, jobs" in doctor and "CUDA_MPS_PIPE_DIRECTORY" in doctor, doctor
    other.terminate()
    assert jobs.wait_until(lambda: device(scene)["core"]["switch_cost"] == 0, BOUND, step=0.1), device(scene)
    scene.finish_companions(under)


def others(broker):
    return (broker.status() or {"broker": {"others": None}})["broker"]["others"]


@finding("hardware-F6", "users-B14")
def two_brokers_of_one_device_say_so(scene):
    (scene.folder / "elsewhere").mkdir()
    (scene.folder / "apart").mkdir()
    second = jobs.Broker(scene.folder / "elsewhere", scene.device)
    # One that has a device for itself hears of nobody.
    apart = jobs.Broker(scene.folder / "apart", jobs.Device(scene.folder / "apart"))
    brokers = (scene.broker, second, apart)
    try:
        for broker in brokers:
            broker.start()
        first = scene.companion("first")
        assert not others(scene.broker)
        scene.companion("alone", more={**apart.device.environment(), **apart.variables()})
        scene.companion("second", more=second.variables())
        for broker, other in ((scene.broker, second), (second, scene.broker)):
            assert jobs.wait_until(lambda it=broker: others(it), BOUND, step=0.1), broker.status()["broker"]
            [row] = others(broker)
            assert row["pid"] == other.job.pid and row["device"] == broker.status()["broker"]["devices"][0]["uuid"], row
            line = f"another broker has it, too (process {other.job.pid} of user"
            for words in (["status"], ["queue"], ["doctor"]):
                page = weft(scene, *words, more=broker.variables()).stdout
                assert line in page and "weft broker --shared" in page, page
            assert broker.job.stderr().count(line) == 1, broker.job.explain()
        assert others(apart) == [] and "another broker" not in weft(scene, "doctor", more=apart.variables()).stdout
        # Who has no job there is nobody's neighbour, whether the name was his or not.
        first.terminate()
        assert jobs.wait_until(lambda: others(scene.broker) == [] and others(second) == [], BOUND, step=0.1), (others(scene.broker), others(second))
    finally:
        for broker in brokers:
            broker.stop()


def in_a_namespace(*command):
    """Such a process is the first one of a pid namespace of its own, with its own /proc."""
    return ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *map(str, command)]


@finding("hardware-F6")
def the_number_of_a_process_of_another_namespace_means_nothing(scene):
    tried = shutil.which("unshare") and subprocess.run(in_a_namespace("true"), capture_output=True, check=False)
    if not tried or tried.returncode:
        print("no pid namespaces here: not played")
        return
    # The broker's second process is a stopped one; the client is the second process of its own namespace.
    broker = scene.broker
    script = 'sleep 600 & kill -STOP $!; [ $! = 2 ] && exec "$@"'
    broker.job = jobs.Job(
        in_a_namespace("sh", "-c", script, "sh", paths.WEFT, "broker", *broker.arguments), environment={**broker.environment(), "WEFT_LOG": "info"}, folder=scene.folder, name="broker"
    )
    assert jobs.wait_until(lambda: jobs.socket_answers(str(broker.socket)) or not broker.job.running(), BOUND) and broker.job.running(), broker.job.explain()
    ready = scene.folder / "ready"
    command = [COMPANION, "--while", scene.running, "--ready", ready, "--result", scene.folder / "job.json"]
    job = scene.job(in_a_namespace("sh", "-c", '"$@" & [ $! = 2 ] && wait $!', "sh", *command), "job", more={"WEFT_MEMORY": "1GiB"})
    assert jobs.wait_until(lambda: ready.exists() or not job.running(), BOUND) and job.running(), job.explain()
    [row] = scene.status()["clients"]
    assert row["pid"] == 2 and row["stopped"] is False, row
    scene.running.unlink()
    scene.finish(job)
    # `unshare` hands no signal on.
    broker.job.kill()
