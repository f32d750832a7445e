"""What a device is, and who else has it: MPS as each client's driver tells it."""

import subprocess

from stage import BOUND, finding
from harness import jobs
from harness.scene import weft


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
